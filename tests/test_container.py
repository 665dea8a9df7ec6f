import gc
import warnings

import pytest

from tenure_service.store import migrate
from tests import fix_db


def _docker_answers() -> bool:
    import docker
    from docker.errors import DockerException

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # the client leaks the socket that failed
        try:
            client = docker.from_env()
        except DockerException:
            return False
        else:
            client.close()
            return True
        finally:
            gc.collect()


@pytest.mark.container
def test_migrate__official_image__is_ready() -> None:
    if not _docker_answers():
        pytest.skip("no Docker engine")
    with fix_db.container() as dsn:
        applied = migrate.migrate(dsn)
        assert [row.id for row in applied] == [item.id for item in migrate.find()]
        assert migrate.check_ready(dsn).ready
