"""Secrets must not reach a record, innocent words must, and neither may cost much."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from self_healing.core.secrets import Masker, label_of_url, secrets_of_url, strip_control

HEX40 = "0123456789abcdef0123456789abcdef01234567"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"
NOTHING_KNOWN = Masker({})


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("login with hf_AbCdEfGhIjKlMnOpQrStUvWxYz012345 failed", "hf_AbCdEfGhIjKlMnOpQrStUvWxYz012345"),
        ("OPENAI sk-proj-abc123DEF456ghi789jkl012", "abc123DEF456ghi789jkl012"),
        ("sk-ant-api03-abcdefghijklmnop0123", "abcdefghijklmnop0123"),
        ("remote: ghp_0123456789abcdefghijABCDEFGHIJ012345", "0123456789abcdefghij"),
        ("github_pat_11ABCDEFG0abcdefghijkl_mnopqrstuvwxyz", "11ABCDEFG0abcdefghijkl"),
        ("glpat-abcdefghij0123456789", "abcdefghij0123456789"),
        ("xoxb-123456789012-abcdefghijkl", "123456789012"),
        ("aws AKIAIOSFODNN7EXAMPLE denied", "AKIAIOSFODNN7EXAMPLE"),
        ("AIzaSyA-1234567890abcdefghijklmnopqrstu", "1234567890abcdefghij"),
        (f"wandb: api key {HEX40} is wrong", HEX40),
        (f"WANDB_API_KEY={HEX40}", HEX40),
        ("Authorization: Bearer abcDEF123.ghi-jkl", "abcDEF123"),
        ("{'authorization': 'Basic dXNlcjpwYXNzd29yZA=='}", "dXNlcjpwYXNzd29yZA"),
        (f"cookie was {JWT}", "eyJzdWIi"),
        ("key=dGhpc0lzQVNlY3JldEtleTEyMzQ1Njc4OTA=", "dGhpc0lzQVNlY3Jld"),
        ("token=Zm9vYmFyYmF6MTIzNDU2Nzg5MA", "Zm9vYmFyYmF6"),
        ("password: hunter22", "hunter22"),
        ('{"api_key": "abcd-efgh"}', "abcd-efgh"),
        ("https://me:pa55w0rd@example.org/x", "pa55w0rd"),
        ("https://me:p@ss@example.org/x", "p@ss"),
        ("git clone https://ghtokenvalue@github.com/a/b", "ghtokenvalue"),
        ("GET https://h.org/d?a=1&token=shrt&b=2", "shrt"),
        ("https://s3.org/x?X-Amz-Signature=abcdef&X-Amz-Credential=AK", "abcdef"),
        ("notify tgram://123456789:AAabc/4567", "AAabc"),
        ("slack://TokenA/TokenB/TokenC", "TokenA"),
        ("Discord://4174216298/JHMHI8qBe7bk2ZwO5U711o3dV_js", "JHMHI8qBe7bk2ZwO5U711o3dV_js"),
        ("https://hooks.slack.com/services/T000/B000/XXXX", "B000"),
        ("https://api.telegram.org/bot123456789:AAF0123456789abcdefghijABCDEFGHIJ01/send", "AAF0123456789"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIEabc\n-----END RSA PRIVATE KEY-----", "MIIEabc"),
    ],
)
def test_what_looks_like_a_secret_is_masked(text: str, secret: str) -> None:
    masked = NOTHING_KNOWN.text(text)
    assert secret not in masked
    assert "***" in masked
    assert NOTHING_KNOWN.text(masked) == masked


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("tgram://123456789:AAabc/4567", "tgram://***"),
        ("https://me:pw@example.org/x?a=1", "https://***@example.org/x?a=1"),
        ("https://h.org/d?a=1&token=shrt&b=2#c", "https://h.org/d?a=1&token=***&b=2#c"),
        ("Authorization: Bearer abcDEF123.ghi", "Authorization: Bearer ***"),
    ],
)
def test_what_is_not_secret_stays_around_the_mask(text: str, masked: str) -> None:
    assert NOTHING_KNOWN.text(text) == masked


@pytest.mark.parametrize(
    "text",
    [
        "{'loss': 2.31, 'grad_norm': 0.93, 'learning_rate': 2e-05, 'epoch': 0.1}",
        "train/mean_token_accuracy",
        "num_tokens=12345678901234567890 tokens_per_s=8812.3 max_tokens: 4096",
        "pad_token=<|endoftext|> eos_token='</s>' tokenizer: AutoTokenizer",
        "KeyError: 'model.layers.0.self_attn.q_proj.weight'",
        "rolled back to key=step-00001000-before-the-spike",
        "see https://huggingface.co/docs/trl/main/en/sft_trainer#packing",
        "task-level metrics of risk-adjusted-returns-2024 and sk-learn",
        "hf_transfer and hf_hub_download are installed",
        "the bearer of bad news",
        "commit 0123456789abcdef0123456789abcdef01234567",
        "File /home/user/train.py:123 in step, mail me@example.org",
    ],
)
def test_innocent_text_is_untouched(text: str) -> None:
    assert Masker({"HOME": "/home/user"}).text(text) == text


def test_secrets_of_the_environment_are_masked_wherever_they_appear() -> None:
    environ = {
        "HF_TOKEN": "unusual/shape value",
        "HUGGING_FACE_HUB_TOKEN": "second-one",
        "WANDB_API_KEY": "third-one-here",
        "DB_PASSWORD": "correct horse",
        "DB_PASSWORD_2": "not a secret name",
        "SHORT_KEY": "abc",
        "PATH": "/usr/local/bin",
        "DEPLOY_KEY": "line one of the key\nline two of the key",
    }
    masker = Masker(environ)
    text = (
        "unusual/shape value, unusual%2Fshape%20value, second-one, third-one-here; correct horse; line two of the key"
    )
    assert masker.text(text) == "***, ***, ***, ***; ***; ***"
    assert masker.text("abc /usr/local/bin not a secret name") == "abc /usr/local/bin not a secret name"


def test_the_longer_of_two_overlapping_secrets_wins() -> None:
    assert Masker({"A_KEY": "password", "B_KEY": "password-and-more"}).text("password-and-more") == "***"


@pytest.mark.parametrize(
    "key",
    [
        "token",
        "hf_token",
        "hub_token",
        "HF_TOKEN",
        "accessToken",
        "auth-token",
        "push_to_hub_token",
        "secret",
        "client_secret",
        "password",
        "passwd",
        "api_key",
        "apikey",
        "apiKey",
        "X-API-Key",
        "Authorization",
        "credentials",
        "private_key",
        "aws_secret_access_key",
        "aws_access_key_id",
        "Set-Cookie",
    ],
)
def test_values_under_a_telling_key_are_masked_whole(key: str) -> None:
    masked = NOTHING_KNOWN.value({"outer": [{key: "plain words"}, {key: ["a", "b"]}, {key: {"deep": 1}}]})
    assert masked == {"outer": [{key: "***"}] * 3}


@pytest.mark.parametrize(
    "key",
    [
        "num_tokens",
        "tokens_per_s",
        "pad_token",
        "eos_token",
        "max_tokens",
        "tokenizer",
        "token_accuracy",
        "mean_token_accuracy",
        "key",
        "metric_key",
        "sort_key",
        "loss_per_token",
        "tokens",
        "pad_token_id",
        "secretary",
        "keyboard",
        "max_new_tokens",
        "additional_special_tokens",
    ],
)
def test_values_under_an_innocent_key_stay(key: str) -> None:
    assert NOTHING_KNOWN.value({key: "plain words"}) == {key: "plain words"}


def test_flags_and_numbers_that_tell_nothing_stay() -> None:
    body = {"token": None, "use_auth_token": True, "seconds_per_auth_token": 0.5, "cache_token": 7, "password": ""}
    assert NOTHING_KNOWN.value(body) == body
    assert NOTHING_KNOWN.value({"password": 1234}) == {"password": "***"}


def test_containers_keep_their_type_and_other_values_their_identity() -> None:
    odd = object()
    value = {"a": (1, "hf_AbCdEfGhIjKlMnOpQrStUvWxYz012345"), "b": [odd, 2.5], 3: "x"}
    assert NOTHING_KNOWN.value(value) == {"a": (1, "***"), "b": [odd, 2.5], 3: "x"}
    assert value["a"] == (1, "hf_AbCdEfGhIjKlMnOpQrStUvWxYz012345")


def test_a_secret_used_as_a_key_is_masked_and_many_keys_do_not_pile_up() -> None:
    masker = Masker({})
    assert masker.value({"hf_AbCdEfGhIjKlMnOpQrStUvWxYz012345": 1}) == {"***": 1}
    for number in range(10_000):
        masker.value({f"metric_{number}": 1.0})
    assert len(masker._keys) <= 4096


@given(st.text(alphabet=st.sampled_from(list("ab:/@=?&-_.kKeytoken1 \n'\"*")), max_size=80))
def test_masking_twice_changes_nothing_more(text: str) -> None:
    once = NOTHING_KNOWN.text(text)
    assert NOTHING_KNOWN.text(once) == once


@pytest.mark.parametrize(
    "piece",
    [
        *(
            "a",
            "sk-",
            "hf_",
            "eyJ",
            "eyJaaaaaaaa.",
            "://",
            "://a:b",
            "a@",
            "wandb",
            "wandb " + "a" * 39,
            "key=",
            "key: aB",
        ),
        *(
            "token=",
            "password=",
            "?",
            "?a",
            "?token",
            "Bearer ",
            "authorization:",
            "-----BEGIN ",
            "slack://",
            "xox",
            "bot1",
        ),
        *("-----BEGIN PRIVATE KEY-----", "SG." + "a" * 20 + ".", "\x1b]", "\x1b[", "\x1b[1", "\x9d0;", " ", "AKIA"),
    ],
)
def test_time_grows_no_faster_than_the_text(piece: str) -> None:
    def seconds(size: int) -> float:
        text = piece * (size // len(piece))
        fastest = float("inf")
        for _ in range(2):
            start = time.thread_time()
            NOTHING_KNOWN.text(text)
            strip_control(text)
            fastest = min(fastest, time.thread_time() - start)
        return fastest

    # Ten times the text in a hundred times the time would be quadratic.
    assert seconds(60_000) < 40 * max(seconds(6_000), 0.0005)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07text\x1b]8;;http://x\x1b\\link", "textlink"),
        ("\x1b]52;c;never closed", "52;c;never closed"),
        ("a\x9b31mb\x9d0;t\x9cc", "abc"),
        ("bar\r\nnext\ttab\x00\x07\x08\x7f\x85", "bar\nnext\ttab"),
        ("user\u202etxt.exe\u2066\u200f", "usertxt.exe"),
        ("\ud800lone \ufeffmark", "lone mark"),
        ("\x1bPdevice\x1b\\ok \x1bc \x1b(B", "ok  "),
        ("caf\u00e9 \u4e2d\u6587 \U0001f600", "caf\u00e9 \u4e2d\u6587 \U0001f600"),
    ],
)
def test_only_what_can_be_read_is_shown(text: str, shown: str) -> None:
    assert strip_control(text) == shown


@given(st.text())
def test_nothing_that_a_terminal_obeys_is_left(text: str) -> None:
    shown = strip_control(text)
    assert not any(ord(char) < 32 and char not in "\n\t" for char in shown)
    assert not any(0x7F <= ord(char) <= 0x9F for char in shown)
    assert strip_control(shown) == shown
    shown.encode()


@pytest.mark.parametrize(
    ("url", "label"),
    [
        ("https://hooks.example.com/services/T0/B1/xyz", "https://hooks.example.com/***"),
        ("https://user:word@example.com:8080/", "https://example.com:8080"),
        ("https://example.com?token=abc", "https://example.com/***"),
        ("http://127.0.0.1:80", "http://127.0.0.1:80"),
        ("tgram://123456:token/chat", "tgram://***"),
        ("mailto://me:word@example.com", "mailto://***"),
        ("no address", "***"),
    ],
)
def test_an_address_is_shown_as_where_it_leads_to(url, label):
    assert label_of_url(url) == label
    masker = Masker({}, secrets_of_url(url))
    assert masker.text(f"see {label}") == f"see {label}", "what may be seen stays to be seen"


def test_the_parts_of_an_address_that_let_one_in_are_masked_and_words_of_its_path_are_not():
    url = "https://user:longpassword@example.com/services/T0123456/averylongtokenofletters?sig=0a1b2c3d4e"
    masker = Masker({}, secrets_of_url(url))
    for secret in (url, "longpassword", "T0123456", "averylongtokenofletters", "0a1b2c3d4e"):
        assert masker.text(f"got {secret}!") == "got ***!", secret
    assert masker.text("services of example.com") == "services of example.com"
