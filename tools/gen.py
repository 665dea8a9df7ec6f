"""Generates the Python stubs of proto/ into sdk/, and documents; `--check` only compares.

The message stubs come from mypy-protobuf: HasField and WhichOneof take and return literals there,
so that a misspelt field or a forgotten arm of a oneof is a type error.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

from tools import default_docs, error_docs, metric_docs

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = Path("tenure") / "v1"
# What each generated document should hold.
DOCUMENTS = {
    default_docs.TARGET: default_docs.text,
    error_docs.TARGET: error_docs.text,
    metric_docs.TARGET: metric_docs.text,
}
INIT = '"""Generated from proto/tenure/v1 by `make gen`; do not edit."""\n'


def _includes() -> list[Path]:
    """Returns where google/protobuf and google/rpc are: inside the installed packages."""
    found = [ROOT / "proto"]
    for package, below in (("grpc_tools", "_proto"), ("google.rpc", "../..")):
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            sys.exit(f"{package} is not installed: make venv")
        found.append((Path(next(iter(spec.submodule_search_locations))) / below).resolve())
    return found


def generate(target: Path) -> None:
    """Writes every stub below `target`."""
    sources = sorted((ROOT / "proto").rglob("*.proto"))
    scripts = Path(sys.executable).parent
    outputs = ("python", "grpc_python", "mypy", "mypy_grpc")
    command = [
        sys.executable,
        "-m",
        "grpc_tools.protoc",
        *(f"-I{path}" for path in _includes()),
        f"--plugin=protoc-gen-mypy={scripts / 'protoc-gen-mypy'}",
        f"--plugin=protoc-gen-mypy_grpc={scripts / 'protoc-gen-mypy_grpc'}",
        *(f"--{name}_out={target}" for name in outputs),
        *(str(path.relative_to(ROOT / "proto")) for path in sources),
    ]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    for grpc_stub in (target / PACKAGE).glob("*_pb2_grpc.py*"):
        # Files without a service get empty companions; nobody imports those.
        message_stub = grpc_stub.name.split("_pb2_grpc", maxsplit=1)[0]
        if "\nservice " not in (ROOT / "proto" / PACKAGE / f"{message_stub}.proto").read_text():
            grpc_stub.unlink()
    (target / PACKAGE / "__init__.py").write_text(INIT, encoding="utf-8")


def _texts(folder: Path) -> dict[str, str]:
    paths = (path for path in folder.glob("*") if path.suffix in {".py", ".pyi"})
    return {path.name: path.read_text(encoding="utf-8") for path in paths}


def _documents(*, check: bool) -> None:
    """Writes the generated documents, or exits 1 when one of them is stale."""
    wanted = {path: text() for path, text in DOCUMENTS.items()}
    stale = [
        path
        for path, text in wanted.items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    if check and stale:
        names = ", ".join(str(path.relative_to(ROOT)) for path in stale)
        sys.exit(f"stale documents, run `make gen`: {names}")
    for path in stale:
        path.write_text(wanted[path], encoding="utf-8")
    print(
        f"{len(wanted)} documents are fresh"
        if check
        else f"{len(wanted)} documents, {len(stale)} written"
    )


def main() -> None:
    """Generates, or with `--check` exits 1 when anything differs from what would be generated."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, change nothing")
    check = parser.parse_args().check
    _documents(check=check)
    with tempfile.TemporaryDirectory() as scratch:
        generate(Path(scratch))
        wanted = _texts(Path(scratch) / PACKAGE)
    folder = ROOT / "sdk" / PACKAGE
    present = _texts(folder) if folder.exists() else {}
    stale = sorted(n for n in wanted.keys() | present.keys() if wanted.get(n) != present.get(n))
    if check:
        if stale:
            sys.exit(f"stale stubs, run `make gen`: {', '.join(stale)}")
        print(f"{len(wanted)} stubs are fresh")
        return
    folder.mkdir(parents=True, exist_ok=True)
    for name in stale:
        if name in wanted:
            (folder / name).write_text(wanted[name], encoding="utf-8")
        else:
            (folder / name).unlink()
    print(f"{len(wanted)} stubs, {len(stale)} written")


if __name__ == "__main__":
    main()
