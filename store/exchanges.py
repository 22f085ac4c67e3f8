"""The exchanges of one run with chat servers, in the store."""

from cudal2_agent.contract.protocols import TrajectoryStore
from cudal2_agent.contract.records.exchange import Exchange


class RunExchanges:
    """`contract.protocols.ExchangeLog` of a run over the trajectory store."""

    def __init__(self, store: TrajectoryStore, run_id: str) -> None:
        self._store, self._run_id = store, run_id

    def record(self, exchange: Exchange) -> None:
        """Raises: StoreError where the run was never recorded."""
        self._store.record_exchange(self._run_id, exchange)

    def recorded(self) -> list[Exchange]:
        """By round, sample and turn."""
        return self._store.exchanges(self._run_id)
