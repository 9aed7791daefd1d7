"""Errors of the kernels: every one says which argument, what was expected and what came."""


class KernelArgumentError(ValueError):
    """A kernel was handed something it does not accept; nothing has been read or written yet.

    argument  name of the argument, dotted for a part of it ("want.ids")
    expected  what would have been accepted
    got       what came
    """

    def __init__(self, argument: str, expected: str, got: str) -> None:
        # The three parts are the args, so that the error survives pickling between processes.
        super().__init__(argument, expected, got)
        self.argument = argument
        self.expected = expected
        self.got = got

    def __str__(self) -> str:
        return f"{self.argument}: expected {self.expected}, got {self.got}"


class NonFiniteInput(KernelArgumentError):
    """A score is NaN or infinite, so no order of the blocks exists.

    row     index of the row (the layer's place in the batch)
    column  index in the row (the block)
    """

    def __init__(self, argument: str, row: int, column: int, value: float) -> None:
        super().__init__(f"{argument}[{row}, {column}]", "a finite number", str(value))
        self.args = (argument, row, column, value)
        self.row = row
        self.column = column
        self.value = value
