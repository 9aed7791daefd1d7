"""Entry point `vllm.general_plugins`: vLLM calls `register` in each of its processes."""

NAME = "KVSweepConnector"
MODULE = "kvsweep.runtime.vllm.connector"


def register() -> None:
    """Make the connector known by its name. Called again, it does nothing."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    if NAME not in KVConnectorFactory._registry:
        KVConnectorFactory.register_connector(NAME, MODULE, NAME)
