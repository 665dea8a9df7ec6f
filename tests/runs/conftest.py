from tests.protocol.conftest import client, pair
from tests.usecase.stage import stage

__all__ = ["client", "pair", "stage"]
