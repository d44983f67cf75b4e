"""Policy files of C2SP tlog-policy: read, written, refused; and cosignatures of ML-DSA-44 beside those of Ed25519."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from witnesses import LOG, NOW, OTHER_LOG, WITNESSES, History, cosigned, leaves

from treaty_client.policy import load_policy
from treaty_client.registries.trust import TrustedRegistries, parse_registry_name
from treaty_command.commands import app
from treaty_consensus.canonical import b64decode, b64encode
from treaty_consensus.errors import Malformed, TreatyError, Unavailable, Untrusted
from treaty_consensus.kinds import Witnesses
from treaty_consensus.log.cosigned import ML_DSA_PUBLIC, ML_DSA_SIGNATURE, ml_dsa_message
from treaty_consensus.log.note import KeyType, SignerKey, VerifierKey, add_signatures, sign
from treaty_consensus.log.policy import MAX_POLICY, PolicyLog, WitnessPolicy
from treaty_consensus.log.witness import Quorum
from treaty_registry.settings import Settings, WitnessName, witnesses_of
from treaty_registry.witness.records import read_log_keys

HISTORY = History.of(leaves(20))
POST_QUANTUM = SignerKey("pq.example/w1", KeyType.ML_DSA_44, hashlib.sha256(b"post quantum").digest())
W1, W2, W3 = WITNESSES
FILE = f"""
# the policy of C2SP's example, and a witness of ML-DSA-44
log {LOG.verifier} https://log.example
log\t{OTHER_LOG.verifier}

witness X1 {W1.verifier} https://w1.example
witness X2 {W2.verifier}
witness X3 {POST_QUANTUM.verifier}
  group X-witnesses 2 X1 X2 X3
witness K\N{KELVIN SIGN} {W3.verifier}
group Y any K\N{KELVIN SIGN}
group X-and-Y all X-witnesses Y
quorum X-and-Y
"""


def test_a_file_is_read_applied_and_written() -> None:
    policy = WitnessPolicy.parse(FILE.encode())
    assert [log.url for log in policy.logs] == ["https://log.example", None]
    assert [key.type for key in policy.keys] == [KeyType.COSIGNATURE, KeyType.COSIGNATURE, KeyType.ML_DSA_44, KeyType.COSIGNATURE]
    head, note = HISTORY.checkpoint(20), HISTORY.note(20)
    for cosigners, holds in (
        ((W1, POST_QUANTUM, W3), True),
        ((W1, W2, W3), True),
        ((W1, W2), False),
        ((W1, W3), False),
        ((POST_QUANTUM, W3), False),
    ):
        signed = cosigned(note, *cosigners)
        if holds:
            policy.check(signed, head, since=NOW)
            policy.check(signed, head, since=NOW, until=NOW)
            # The cosignature of a clock that was ahead would stay fresh until then.
            for times in ({"since": NOW + 1}, {"until": NOW - 1}):
                with pytest.raises(Untrusted):
                    policy.check(signed, head, **times)
        else:
            with pytest.raises(Untrusted):
                policy.check(signed, head)
    with pytest.raises(Untrusted):
        policy.check(cosigned(note, W1, W2, W3), HISTORY.checkpoint(19))
    again = WitnessPolicy.parse(policy.format())
    assert again == policy
    assert again.format() == policy.format()


def test_a_policy_without_cosignatures_holds_for_every_note() -> None:
    WitnessPolicy.parse(b"quorum none\n").check(HISTORY.note(20), HISTORY.checkpoint(20))


def test_a_plain_quorum_is_a_policy() -> None:
    policy = WitnessPolicy.of(Quorum((W1.verifier, W2.verifier), 2))
    assert WitnessPolicy.parse(policy.format()) == policy
    assert policy.holds([W1.verifier, W2.verifier]) and not policy.holds([W1.verifier])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "quorum none",
        "quorum X\n",
        "quorum none\nquorum none\n",
        f"witness none {W1.verifier}\nquorum none\n",
        f"witness X {W1.verifier}\nwitness X {W2.verifier}\nquorum X\n",
        f"witness X {W1.verifier}\nwitness Y {W1.verifier}\nquorum X\n",
        f"witness X {LOG.verifier}\nquorum X\n",
        f"log {W1.verifier}\nquorum none\n",
        f"log {LOG.verifier}\nlog {LOG.verifier}\nquorum none\n",
        f"group A any X\nwitness X {W1.verifier}\nquorum A\n",
        f"witness X {W1.verifier}\nquorum A\ngroup A any X\n",
        f"witness X {W1.verifier}\ngroup A 2 X\nquorum A\n",
        f"witness X {W1.verifier}\ngroup A 0 X\nquorum A\n",
        f"witness X {W1.verifier}\ngroup A 01 X\nquorum A\n",
        f"witness X {W1.verifier}\ngroup A any\nquorum A\n",
        f"witness X {W1.verifier}\ngroup A any X X\nquorum A\n",
        f"witness X {W1.verifier}\ngroup A any X\ngroup B any X\nquorum A\n",
        f"witness X {W1.verifier}\ngroup A any none\nquorum A\n",
        f"witness X {W1.verifier} https://w1.example more\nquorum X\n",
        "quorum none\r\n",
        "quorum\vnone\n",
        "#\x7f\nquorum none\n",
        "unknown line\nquorum none\n",
        "#" * MAX_POLICY + "\nquorum none\n",
    ],
)
def test_what_is_no_policy_is_refused(text: str) -> None:
    with pytest.raises(TreatyError) as refused:
        WitnessPolicy.parse(text.encode())
    assert refused.value.code == "witness.policy"


def test_the_policy_of_an_agent_names_a_file(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text('[witnesses]\npolicy = "witnesses.policy"\n')
    with pytest.raises(Unavailable, match=r"witnesses\.policy"):
        load_policy(tmp_path / "policy.toml")
    (tmp_path / "witnesses.policy").write_text(FILE)
    assert load_policy(tmp_path / "policy.toml").witnesses == WitnessPolicy.parse(FILE.encode())
    for text in ('[witnesses]\npolicy = "p"\nquorum = 1\n', "[witnesses]\npolicy = 1\n", "[witnesses]\nquorum = 1\n"):
        (tmp_path / "policy.toml").write_text(text)
        with pytest.raises(Malformed) as refused:
            load_policy(tmp_path / "policy.toml")
        assert refused.value.code == "policy.file"


def test_a_key_of_ml_dsa_44_is_written_in_one_way() -> None:
    key = POST_QUANTUM.verifier
    assert (len(key.public), VerifierKey.parse(str(key)), SignerKey.parse(POST_QUANTUM.format())) == (
        *(ML_DSA_PUBLIC, key),
        POST_QUANTUM,
    )
    name, key_id, encoded = str(key).split("+", 2)
    assert key_id == hashlib.sha256(name.encode() + b"\n\x06" + key.public).digest()[:4].hex()
    for wrong in (
        f"{name}+{key_id}+{b64encode(b64decode(encoded, limit=2000)[:-1])}",
        f"{name}+{key_id}+{b64encode(bytes([4]) + key.public)}",
        f"{name}+00000000+{encoded}",
        f"{'n' * 2000}+{key_id}+{encoded}",
    ):
        with pytest.raises(Malformed):
            VerifierKey.parse(wrong)


def test_an_ml_dsa_44_cosignature_has_name_time_and_checkpoint() -> None:
    note = add_signatures(HISTORY.note(20), [POST_QUANTUM], time=NOW)
    key = POST_QUANTUM.verifier
    Quorum((key,), 1).check(note, HISTORY.checkpoint(20), since=NOW, until=NOW)
    with pytest.raises(Untrusted):
        Quorum((key,), 1).check(note, HISTORY.checkpoint(20), until=NOW - 1)
    line = note.decode().splitlines()[-1].removeprefix(f"— {key.name} ")
    signature = b64decode(line, limit=5000)[4:]
    assert len(signature) == 8 + ML_DSA_SIGNATURE
    text = HISTORY.checkpoint(20).format().encode()
    assert key.verify(text, signature) == NOW
    for other_key, other_text, other_signature in (
        (VerifierKey("other.example", key.type, key.public), text, signature),
        (key, HISTORY.checkpoint(19).format().encode(), signature),
        (key, text, (NOW + 1).to_bytes(8, "big") + signature[8:]),
        (key, text, signature[:-1]),
        (key, text, signature[:8] + bytes(ML_DSA_SIGNATURE)),
        (key, b"no checkpoint\n", signature),
    ):
        with pytest.raises(Untrusted):
            other_key.verify(other_text, other_signature)
    assert key.verify(text + b"an extension\n", signature) == NOW, "extension lines are not cosigned"
    with pytest.raises(Malformed):
        sign("no checkpoint\n", [POST_QUANTUM], time=NOW)


def test_the_signed_message_is_that_of_the_specification() -> None:
    text = HISTORY.checkpoint(20).format().encode()
    expected = b"subtree/v1\n\0" + b"\x0dpq.example/w1" + NOW.to_bytes(8, "big") + b"\x0blog.example"
    assert ml_dsa_message("pq.example/w1", text, NOW) == expected + bytes(8) + (20).to_bytes(8, "big") + HISTORY.root(20)


def test_the_witnesses_of_an_election_have_keys_of_ed25519() -> None:
    with pytest.raises(Malformed) as refused:
        Witnesses((str(POST_QUANTUM.verifier),), 1).check()
    assert refused.value.code == "witness.policy"


def test_an_agent_writes_its_trust_as_a_witness_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = parse_registry_name(f"https://{LOG.name}#{LOG.verifier}")
    TrustedRegistries(tmp_path).add(name)

    def exported() -> WitnessPolicy:
        assert not app(["policy", "export", "--home", str(tmp_path)])
        return WitnessPolicy.parse(capsys.readouterr().out.encode())

    assert exported() == WitnessPolicy((PolicyLog(LOG.verifier, f"https://{LOG.name}"),))
    keys = f'["{W1.verifier}", "{POST_QUANTUM.verifier}"]'
    (tmp_path / "policy.toml").write_text(f"[witnesses]\nquorum = 1\nkeys = {keys}\n")
    assert exported().holds([POST_QUANTUM.verifier])
    (tmp_path / "witnesses.policy").write_text(FILE)
    (tmp_path / "policy.toml").write_text('[witnesses]\npolicy = "witnesses.policy"\n')
    policy = exported()
    assert (policy.groups, policy.quorum) == (WitnessPolicy.parse(FILE.encode()).groups, "X-and-Y")
    assert [log.key for log in policy.logs] == [LOG.verifier]


def test_a_registry_asks_the_policys_witnesses_with_a_url(tmp_path: Path) -> None:
    (named,) = witnesses_of(WitnessPolicy.parse(FILE.encode()))
    assert (named.url, named.key) == ("https://w1.example", W1.verifier)
    twice = WitnessName("https://w1.example", SignerKey(W1.name, KeyType.ML_DSA_44, bytes(32)).verifier)
    assert Settings(tmp_path, witnesses=(named, twice)).witnesses == (named, twice), "a key of each type, under one name"
    with pytest.raises(Malformed):
        Settings(tmp_path, witnesses=(named, WitnessName("https://other.example", named.key)))


def test_the_keys_of_logs_are_read_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text(f"# two logs\n{LOG.verifier}\n\n  {OTHER_LOG.verifier}  \n")
    assert read_log_keys(tmp_path / "logs") == [str(LOG.verifier), str(OTHER_LOG.verifier)]
