"""Payloads that neither the server nor its database can read: a codec that encrypts.

    export SHOP_KEYS="2026-02:$(openssl rand -hex 32)"      # the same for producers and workers
    tenure worker examples.encryption:app
    python -c 'from examples.encryption import greet; print(greet.enqueue("Ada").result(30))'

Needs `pip install cryptography`. AES-SIV on purpose: it gives the same bytes for the same input, so
that an idempotency key recognises its task, and there is no nonce that must never repeat. Its price
is that equal inputs can be told to be equal.

To change keys, put the new one first everywhere, then drop the old one when nothing written with it
is left.
"""

import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from tenure import App, Payload

SUFFIX = "+aessiv;kid="


class Encryption:
    """Encryption encrypts what goes out with the first key, and reads what any key wrote.

    Args:
        keys: Keys by their ids: 32, 48 or 64 bytes each. The ids travel, the keys never do.
    """

    def __init__(self, keys: dict[str, bytes]) -> None:
        self._newest = next(iter(keys))
        self._ciphers = {key_id: AESSIV(key) for key_id, key in keys.items()}

    @classmethod
    def from_text(cls, text: str) -> "Encryption":
        """Reads `id:hex,id:hex`, the newest key first."""
        pairs = (entry.strip().split(":", 1) for entry in text.split(","))
        return cls({key_id: bytes.fromhex(key) for key_id, key in pairs})

    def encode(self, payload: Payload) -> Payload:
        """Encrypts; the name of the encoding is protected with the data."""
        encoding = f"{payload.encoding}{SUFFIX}{self._newest}"
        data = self._ciphers[self._newest].encrypt(payload.data, [encoding.encode()])
        return Payload(data=data, encoding=encoding, schema=payload.schema)

    def decode(self, payload: Payload) -> Payload:
        """Decrypts. Refuses plain text: whoever can enqueue could have sent it past the keys."""
        plain, found, key_id = payload.encoding.partition(SUFFIX)
        if not found:
            raise ValueError(f"a payload of encoding {payload.encoding!r} is not encrypted")
        if key_id not in self._ciphers:
            raise ValueError(f"there is no key {key_id!r} here")
        try:
            data = self._ciphers[key_id].decrypt(payload.data, [payload.encoding.encode()])
        except InvalidTag:
            raise ValueError(f"it was not written with this key {key_id!r}, or changed") from None
        return Payload(data=data, encoding=plain, schema=payload.schema)


app = App(
    "shop",
    codec=Encryption.from_text(os.environ["SHOP_KEYS"]) if "SHOP_KEYS" in os.environ else None,
)


@app.task
def greet(name: str) -> str:
    """Its argument and its result travel encrypted."""
    return f"Hello, {name}"
