"""`tenure key` and `tenure audit`, over TLS as people would run them."""

import json
import re
import signal
from pathlib import Path

import trustme

from tenure_service.cli import exits
from tests.cli.command import Done, run, running


def _run(*words: str | Path, variables: dict[str, str] | None = None) -> Done:
    return run(*words, cwd=None, **(variables or {}))


def _certificates(folder: Path) -> tuple[Path, Path, Path]:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1", "localhost")
    ca, cert, key = folder / "ca", folder / "cert", folder / "key"
    authority.cert_pem.write_to_path(str(ca))
    issued.private_key_pem.write_to_path(str(key))
    issued.cert_chain_pems[0].write_to_path(str(cert))
    return ca, cert, key


def test_key__first_by_the_database_then_over_tls__is_made_used_and_revoked(
    database: str, tmp_path: Path
) -> None:
    ca, cert, key = _certificates(tmp_path)
    flags = ("--tls-cert", cert, "--tls-key", key, "--require-keys")
    # With both it may listen on an address that others can reach.
    with running(
        "server", "--listen", "0.0.0.0:0", "--json", "--database", database, *flags
    ) as server:
        server.until('"address"')
        port = json.loads(server.text[server.text.index("{") :].splitlines()[0])["address"]
        address = f"127.0.0.1:{port.rpartition(':')[2]}"
        asked = {"TENURE_ADDRESS": address, "TENURE_TLS_CA": str(ca)}

        refused = _run("queue", "list", variables=asked)
        assert refused.code == 1
        assert "no key" in refused.err

        first = _run(
            *("key", "create", "ops", "--scope", "admin", "--scope", "client"),
            *("--every-namespace", "--database", database, "--json"),
        )
        assert first.code == 0, first.err
        made = json.loads(first.out)
        assert made["key"]["scopes"] == ["admin", "client"]
        asked["TENURE_API_KEY"] = made["secret"]

        second = _run(
            *("key", "create", "mailer", "--scope", "client", "--queue", "mail*"),
            *("--expires", "90d", "--json"),
            variables=asked,
        )
        assert second.code == 0, second.err
        mailer = json.loads(second.out)
        assert mailer["key"]["namespace"] == "default"
        assert mailer["key"]["queues"] == ["mail*"]
        assert mailer["key"]["expires_at"]
        too_much = _run("key", "create", "x", "--scope", "worker", variables=asked)
        assert too_much.code == 1
        assert "lacks the scope worker" in too_much.err

        as_mailer = asked | {"TENURE_API_KEY": mailer["secret"]}
        assert _run("task", "enqueue", "send", "--queue", "mail-out", variables=as_mailer).code == 0
        denied = _run("task", "enqueue", "send", "--queue", "other", variables=as_mailer)
        assert (denied.code, "other" in denied.err) == (1, True)

        listed = _run("key", "list", variables=asked)
        assert "mailer" in listed.out
        assert made["secret"] not in listed.out
        assert _run("key", "revoke", mailer["key"]["id"], variables=asked).code == 0
        gone = _run("task", "enqueue", "send", "--queue", "mail-out", variables=as_mailer)
        assert (gone.code, "not known" in gone.err) == (1, True)
        assert "mailer" not in _run("key", "list", variables=asked).out
        assert "mailer" in _run("key", "list", "--all", "--database", database).out
        assert _run("key", "revoke", made["key"]["id"], "--database", database).code == 0

        assert server.end(signal.SIGTERM) == 0


def test_audit__after_some_deeds__lists_them(database: str) -> None:
    with running("server", "--listen", "127.0.0.1:0", "--json", "--database", database) as server:
        server.until('"address"')
        address = json.loads(server.text[server.text.index("{") :].splitlines()[0])["address"]
        assert _run("queue", "pause", "mail", "--address", address).code == 0
        made = _run("key", "create", "ops", "--scope", "admin", "--database", database)
        assert made.code == 0
        secret = made.out.splitlines()[-1]
        assert secret.startswith("tenure_")
        found = json.loads(_run("audit", "--json", "--address", address).out)
        actions = [(event["action"], event["outcome"]) for event in found["events"]]
        assert actions[0][0] == "CreateApiKey"
        assert re.fullmatch(r"OK: key [0-9a-f-]{36}", actions[0][1])
        assert ("SetQueue", "OK") in actions
        assert found["events"][0]["actor"].startswith("database:")
        assert secret not in json.dumps(found)
        shown = _run("audit", "--limit", "2", "--address", address)
        assert "anonymous" in shown.out
        assert server.end(signal.SIGTERM) == 0


def test_list__key_of_two_words__is_refused_in_one_sentence() -> None:
    done = _run("task", "list", variables={"TENURE_API_KEY": "two words"})
    assert done.code == exits.USAGE
    assert done.err.startswith("tenure: TENURE_API_KEY is a text of printable ASCII characters")
    assert done.err.count("\n") == 1
    assert "two words" not in done.err
