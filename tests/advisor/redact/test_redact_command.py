"""``npufix redact``: nothing of the owner is left, and the diagnosis is the same."""

from __future__ import annotations

import gzip
import hashlib
import json
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from npufix.advisor.redact.copying import _pieces
from npufix.advisor.redact.identifying import learn, redact
from npufix.advisor.redact.pseudonyms import Pseudonyms

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    Npufix = Callable[..., subprocess.CompletedProcess[str]]

SECRETS = (
    "alice", "gpu-node-17", "10.20.30.40", "fe80::1ff:fe23:4567:890a", "aa:bb:cc:dd:ee:ff",
    "123e4567-e89b-12d3-a456-426614174000", "secret_project", "bob@corp.example", "job-4711",
    "git.corp.example", "\\u5f20\\u4e09", "C:\\\\Users", "team-x", "files1", "10.9.8.7",
    "2001:db7", "eve", "ip-10", "node-9", "hf_01",
)  # fmt: skip
TEXT = r"""
{"Call stack": "/home/alice/secret_project/my model/train.py(23): main;\r\n/home/alice/x.py(1): f"}
{"path": "/usr/local/lib/python3.10/site-packages/torch/nn/modules/linear.py(114): forward"}
{"win": "C:\\Users\\alice\\secret_project\\run.py(9): go", "esc": "\/home\/alice\/x\/y.py(1): a"}
{"cn": "/data/\u5f20\u4e09/a.py(5): f", "f": "secret_project/model.py(12): forward"}
{"hostname": "gpu-node-17", "MASTER_ADDR": "10.20.30.40", "job_id": "job-4711"}
{"group": "10.20.30.40%eth0_60000_0_1699", "mac": "aa:bb:cc:dd:ee:ff", "mail": "bob@corp.example"}
{"id": "123e4567-e89b-12d3-a456-426614174000", "ip6": "fe80::1ff:fe23:4567:890a"}
{"encoded": "/view?f=%2Fmnt%2Fteam-x%2Fsecret_project%20a", "json": "\u002fmnt\u002fteam-x\u002Fb"}
{"share": "\\\\files1\\team-x\\a", "file": "file:///mnt/team-x/a", "user": "~eve/team-x/a"}
{"port": "10.9.8.7_6000", "ip6": ["2001:db7::1", "::ffff:10.9.8.7"], "mail": "eve%40corp.example"}
{"command": "HOSTNAME=node-9 run --master_addr node-9", "u": "node-9"}
{"on": "ip-10-9-8-7.compute.internal"}
{"HF_TOKEN": "hf_0123456789", "text": "clone git@git.corp.example:team-x/a.git"}
{"url": "https://git.corp.example/alice/secret_project", "who": "started by Alice on GPU-NODE-17"}
"""
KEPT = (
    "/redacted/lib/python3.10/site-packages/torch/nn/modules/linear.py(114): forward",
    "train.py(23): main", "model.py(12): forward", "%eth0_60000_0_1699",
)  # fmt: skip
UNTOUCHED = (
    '{"name": "aten::add", "ts": 1754035200123584.274, "shape": "16,128;128"}',
    "torch/nn/modules/module.py(1789): _call_impl",
    "torch_npu 2.7.1, CANN 8.0.1.2 (version 8.5.0.1)",
    "<built-in method a of type object at 0x7f>", "12:34:56.789", "127.0.0.1", "N/A", "aic/aiv",
    "HOSTNAME=$HOST", "1.2.3.4rc1", "threading.local", "a // b", "user=", "ip-add",
    "std::vector<at::Tensor>", "c10::BFloat16", "npu:0", "a::b", "::error::", "dead::beef(x)",
)  # fmt: skip


def test_what_says_whose_it_is_goes_and_the_rest_stays() -> None:
    names = Pseudonyms()
    learn(TEXT, names)
    made = redact(TEXT, names)
    assert [secret for secret in SECRETS if secret.lower() in made.lower()] == []
    assert [text for text in KEPT if text not in made] == []
    for line in made.strip().splitlines():
        json.loads(line)
    assert redact(made, names).count("/redacted/") == made.count("/redacted/")
    assert made.count(names.of("user", "alice")) == 1, "the same everywhere"
    for text in UNTOUCHED:
        assert redact(text, names) == text
    assert redact("/home/alice/x/y.py", Pseudonyms()) != redact("/home/alice/x/y.py", Pseudonyms())


@pytest.mark.parametrize("piece", [7, 64])
def test_a_piece_ends_where_a_value_ends(
    piece: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("npufix.advisor.redact.copying._PIECE", piece)
    data = b'[{"a":"/home/alice/b.py","c":1},' * 50 + b"\n" + b"x" * 200
    (tmp_path / "f").write_bytes(data)
    with (tmp_path / "f").open("rb") as file:
        pieces = list(_pieces(file))
    assert "".join(pieces).encode() == data
    assert all("/home" not in p or "/home/alice/b.py" in p for p in pieces)


def test_a_long_text_takes_no_longer_than_it_is() -> None:
    for text in ("a-", "ip-", "0.", "&#47;", "\n ", "~", "/", "a"):  # hours, if it were tried anew
        assert redact(text * 50_000, Pseudonyms()) == text * 50_000


def numbers(made: Any) -> Any:
    if isinstance(made, dict):
        return {key: numbers(value) for key, value in made.items()}
    if isinstance(made, list):
        return [numbers(value) for value in made]
    return "text" if isinstance(made, str) else made


def test_the_copy_of_a_dump_is_diagnosed_with_the_same_numbers(
    inside: Npufix, dump: Path, tmp_path: Path
) -> None:
    output = dump / "ASCEND_PROFILER_OUTPUT"
    trace = (output / "trace_view.json").read_bytes()
    (output / "trace_view.json").unlink()
    (output / "trace_view.json.gz").write_bytes(gzip.compress(trace, 1))
    (dump / "notes.txt").write_text("mine")
    host = dump.rename(dump.with_name(dump.name.replace("bert-like", "gpu-node-17")))
    before = {p: hashlib.sha256(p.read_bytes()).digest() for p in host.rglob("*") if p.is_file()}
    copy = tmp_path / "copy"
    done = inside("redact", host.parent, "-o", copy)
    assert done.returncode == 0, done.stderr
    assert f"not copied, not known: {host.name}/notes.txt" in done.stdout
    assert "x path" in done.stdout
    (made,) = copy.iterdir()
    assert made.name == host.name.replace("gpu-node-17", "host001")
    whole = [p.read_bytes() for p in made.rglob("*") if p.is_file() and p.suffix != ".gz"]
    whole.append(gzip.decompress(next(made.rglob("*.gz")).read_bytes()))
    assert all(b"gpu-node-17" not in text and b"/bert_like/" not in text for text in whole)
    first, second = (json.loads(inside("diagnose", p, "--json").stdout) for p in (host, made))
    assert numbers(first) == numbers(second)
    assert before == {p: hashlib.sha256(p.read_bytes()).digest() for p in before}
    again = inside("redact", host.parent, "-o", copy)
    assert (again.returncode, "exists" in again.stderr) == (2, True)


def test_a_database_is_copied_without_what_was_deleted_in_it(
    inside: Npufix, tmp_path: Path
) -> None:
    source = tmp_path / "ascend_pytorch_profiler_0.db"
    with closing(sqlite3.connect(source)) as made, made:
        made.execute("CREATE TABLE HOST_INFO (hostUid TEXT, hostName TEXT)")
        made.execute("INSERT INTO HOST_INFO VALUES ('77', 'gpu-node-17')")
        made.execute("CREATE TABLE STRING_IDS (id INTEGER PRIMARY KEY, value TEXT)")
        made.execute("INSERT INTO STRING_IDS VALUES (5, '/home/alice/a/train.py(3): f')")
        made.execute("INSERT INTO STRING_IDS VALUES (6, 'on gpu-node-17: aten::add')")
        made.execute("INSERT INTO STRING_IDS VALUES (7, 'deleted of alice')")
        made.execute("CREATE TABLE META_DATA (name TEXT, value TEXT)")
        made.execute("INSERT INTO META_DATA VALUES ('hostname', 'node-9'), ('x', 'on node-9')")
        made.execute("DELETE FROM STRING_IDS WHERE id = 7")
    copy = tmp_path / "copy.db"
    assert inside("redact", source, "-o", copy).returncode == 0
    assert not [w for w in (b"alice", b"node-", b"deleted") if w in copy.read_bytes()]
    with closing(sqlite3.connect(copy)) as made:
        kept = made.execute("SELECT id, value FROM STRING_IDS").fetchall()
    assert [id_ for id_, _ in kept] == [5, 6]
    assert kept[0][1].endswith("train.py(3): f")
    assert kept[1][1].endswith(": aten::add")


def test_what_cannot_be_read_leaves_nothing(inside: Npufix, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "kernel_details.csv").write_text("Name\n/home/alice/x/y\n")
    (tmp_path / "in" / "ascend_pytorch_profiler.db").write_bytes(b"no database")
    done = inside("redact", tmp_path / "in", "-o", tmp_path / "out")
    assert done.returncode == 2
    assert done.stderr.startswith("npufix: ")
    assert [p.name for p in tmp_path.iterdir()] == ["in"]
    for wrong in (tmp_path / "none", tmp_path / "in" / "x.bin"):
        assert inside("redact", wrong, "-o", tmp_path / "out").returncode == 2
