"""What goes wrong on a CUDA device: which call said what."""


class CudaError(RuntimeError):
    """A call of the driver failed.

    call  the driver's call ("launch copy_blocks", "copy")
    what  what came of it
    """

    def __init__(self, call: str, what: str) -> None:
        super().__init__(call, what)
        self.call = call
        self.what = what

    def __str__(self) -> str:
        return f"{self.call}: {self.what}"


class OutOfDeviceMemory(CudaError):
    """An allocation did not fit. Nothing was allocated; the device goes on."""


class NoDevice(CudaError):
    """There is no device that kernels could run on, or a library that it takes is missing."""
