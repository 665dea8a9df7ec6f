"""What programs may rely on."""

import inspect
import subprocess
import sys
from pathlib import Path

import tenure
from tenure import AsyncClient, Client, methods
from tenure.v1 import (
    admin_service_pb2,
    registry_service_pb2,
    task_service_pb2,
    workflow_service_pb2,
)

SURFACE = Path(__file__).with_name("surface.txt")


def test_all__names__are_those_written_down() -> None:
    assert sorted(tenure.__all__) == SURFACE.read_text().split()
    for name in tenure.__all__:
        assert getattr(tenure, name) is not None


def test_clients__both__have_the_same_methods() -> None:
    blocking = dict(inspect.getmembers(Client, inspect.isfunction))
    awaitable = {
        name: each
        for name, each in inspect.getmembers(AsyncClient, inspect.iscoroutinefunction)
        if not name.startswith("_")
    }
    assert set(blocking) - {"__init__"} == set(awaitable)
    for name, function in awaitable.items():
        assert inspect.signature(blocking[name]) == inspect.signature(function), name


def test_methods__every_unary_rpc_of_the_client_services__is_there() -> None:
    known = {each.path for each in vars(methods).values() if isinstance(each, methods.Method)}
    files = (task_service_pb2, workflow_service_pb2, registry_service_pb2, admin_service_pb2)
    for file in files:
        for service in file.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                assert f"/{service.full_name}/{method.name}" in known


def test_import__nothing__connects_or_starts_threads() -> None:
    code = (
        "import threading, tenure\n"
        "app = tenure.App('x', 'nowhere.invalid:1')\n"
        "@app.task\n"
        "def f() -> None: ...\n"
        "@app.workflow\n"
        "async def g(ctx: tenure.Context) -> None: ...\n"
        "tenure.Client('nowhere.invalid:1'); tenure.Worker(app)\n"
        "print(threading.active_count())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == ["1"]
