from tests.usecase.stage import stage

__all__ = ["stage"]
