"""A program that type checkers have to accept, and mistakes that they have to find. It is not run."""

from __future__ import annotations

import pathlib

import ckpt
from ckpt.integrations import SaveCallback, newest_directory

with ckpt.Client(memory=1 << 28) as client:
    pending: ckpt.Pending = client.save("state.pt", "42", background=True, keep=3, labels={"step": "8"})
    print(pending.result(timeout=60)["version"])

print(ckpt.save([pathlib.Path("a"), "b"], job="42", redundancy="3+2")["version"])
print(ckpt.save(b"bytes", job="43", deadline=8.5, ttl=86400)["version"])
with ckpt.checkpoint("42", background=True) as directory:
    (directory / "step").write_text("900")
with ckpt.open("42", "step") as file:
    print(file.read())
print(ckpt.restore(pathlib.Path("out"), job="42", existing="replace")["version"])
print([one["version"] for one in ckpt.list("42")])
ckpt.forget("42", keep=1)

callback = SaveCallback("42", keep=2)
newest: str | None = newest_directory("42", "out")

ckpt.save("state.pt", job="42", kep=3)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
ckpt.restore("out", job="42", existing="overwrite")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
ckpt.save("state.pt", job=42)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
SaveCallback("42", kep=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
