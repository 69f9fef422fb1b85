"""Settings: the documented defaults, every variable, and rejections that name the variable."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from app.settings import OPEN_WHERE_UNSET, PREFIX, Settings, SettingsError, load_settings
from models.stores.urls import StoreUrl

MIB = 1024 * 1024


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A folder without a .env file, and no TORCHLANE_ variable."""
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.upper().startswith(PREFIX):
            monkeypatch.delenv(name)


def load() -> Settings:
    return load_settings(os.environ)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("WORKERS", "4", 4),
        ("MODEL_MEMORY", "0.5", 0.5),
        ("MODEL_MEMORY", "2GiB", 2 << 30),
        ("WORKERS", "auto", None),
        ("MODEL_DIR", "s3://bucket/models/", StoreUrl("s3", "bucket", "models")),
        ("MODEL_DIR", "hf://shop/models@v1.2", StoreUrl("hf", "shop", "models@v1.2")),
        ("MODEL_DIR", "models:/my digits@champion", StoreUrl("models", "", "my digits@champion")),
        ("MODEL_DIR", "models:/digits/3", StoreUrl("models", "", "digits/3")),
        ("MODEL_DIR", "https://models.example:8443", StoreUrl("https", "models.example:8443")),
        ("MODEL_DIR", "http://127.0.0.1:8080/a b", StoreUrl("http", "127.0.0.1:8080", "a b")),
        ("MODEL_DIR", "http://[::1]:8080/m", StoreUrl("http", "[::1]:8080", "m")),
        ("REQUIRED_MODELS", "digits, mine", "digits, mine"),
        (
            "PREDICT_ROUTE",
            "/v1/endpoints/1/deployedModels/2:predict",
            "/v1/endpoints/1/deployedModels/2:predict",
        ),
        ("DEVICES", "cpu*2", "cpu*2"),
        ("DEVICES", "cuda:0, cuda:1", "cuda:0,cuda:1"),
        ("BATCH_WAIT_MS", "1.5", 1.5),
        ("MAX_BODY_BYTES", "2MiB", 2 * MIB),
        ("MAX_BODY_BYTES", "2 MB", 2_000_000),
        ("CACHE_BYTES", "1GiB", 1024 * MIB),
        ("CACHE_URL", "redis://me:secret@cache:7000/3", "redis://me:secret@cache:7000/3"),
        ("CACHE_URL", "rediss://[::1]?ssl_ca_certs=ca.pem", "rediss://[::1]?ssl_ca_certs=ca.pem"),
        ("CACHE_URL", "unix:///run/redis.sock?db=1", "unix:///run/redis.sock?db=1"),
        ("API_KEYS_FILE", "/run/secrets/keys", Path("/run/secrets/keys")),
        ("OPEN_METRICS", "false", False),
        ("TRUSTED_HOSTS", "a.example,*.b.example", "a.example,*.b.example"),
        ("TRUSTED_HOSTS", "127.0.0.1, [::1]", "127.0.0.1, [::1]"),
        ("CORS_ORIGINS", "*", "*"),
        (
            "CORS_ORIGINS",
            "https://a.example,http://[::1]:8080",
            "https://a.example,http://[::1]:8080",
        ),
    ],
)
class TestRead:
    def test_from_the_environment(
        self, monkeypatch: pytest.MonkeyPatch, name: str, text: str, value: object
    ) -> None:
        monkeypatch.setenv(PREFIX + name, text)
        assert getattr(load(), name.lower()) == value

    def test_from_a_file(self, tmp_path: Path, name: str, text: str, value: object) -> None:
        (tmp_path / ".env").write_text(f"# ours\nOTHER=1\n{PREFIX}{name}={text}\n")
        assert getattr(load(), name.lower()) == value


def test_environment_overrides_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("TORCHLANE_PORT=1\nTORCHLANE_HOST=::1\n")
    monkeypatch.setenv("TORCHLANE_PORT", "2")
    settings = load()
    assert (settings.port, settings.host) == (2, "::1")


def test_empty_variables_mean_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Settings.model_fields:
        if name.upper() not in OPEN_WHERE_UNSET:
            monkeypatch.setenv(PREFIX + name.upper(), "")
    assert load() == Settings(_env_file=None)


@pytest.mark.parametrize(
    "name",
    ["TRUSTED_KEYS", "API_KEYS", "API_KEYS_FILE", "RATE_LIMIT", "OPEN_METRICS", "TRUSTED_HOSTS"],
)
class TestEmptyGuards:
    """A variable with a missing secret opens nothing."""

    @pytest.mark.parametrize("spelt", [str.upper, str.lower])
    def test_in_the_environment(
        self, monkeypatch: pytest.MonkeyPatch, name: str, spelt: Callable[[str], str]
    ) -> None:
        monkeypatch.setenv(spelt(PREFIX + name), "")
        with pytest.raises(SettingsError, match="is set, but empty: unset it to ") as caught:
            load()
        assert str(caught.value).startswith(spelt(PREFIX + name))

    @pytest.mark.parametrize("line", ["{}=", "{}", "{}=''"])
    def test_in_a_file(self, tmp_path: Path, name: str, line: str) -> None:
        (tmp_path / ".env").write_text(line.format(PREFIX + name))
        with pytest.raises(SettingsError, match=f"^{PREFIX}{name} is set, but empty"):
            load()


@pytest.mark.parametrize(
    ("name", "text", "right"),
    [
        ("PREDICT_ROUTE", "predict", "not a path, such as"),
        ("HEALTH_ROUTE", "/a{b}", "not a path, such as"),
        ("PORT", "http", "valid integer"),
        ("MODEL_DIR", "ftp://host/m", "ftp:// is not supported; use a folder, or s3://"),
        ("MODEL_DIR", "s3://", "it names no place; write it as in s3://bucket/models"),
        ("MODEL_DIR", "s3://bucket/a/../b", "its path is not plain"),
        (
            "MODEL_DIR",
            "models:/digits",
            "no version of a registered model; write it as in models:/",
        ),
        ("MODEL_DIR", "models:/digits/Production", "it names no version of a registered model"),
        ("MODEL_DIR", "models://digits/3", "it names no version of a registered model"),
        ("MODEL_DIR", "models:/digits@", "it names no version of a registered model"),
        ("MODEL_DIR", "runs:/0/model", "runs:/ is not supported; use a folder, or s3://"),
        ("MODEL_DIR", "hf://shop", "it is no repository of the Hub; write it as in hf://"),
        ("API_KEYS_FILE", "file:///keys", "file:// is not supported, only local paths are"),
        ("WORKERS", "many", "use auto or a number from 1 to 256"),
        ("MODEL_MEMORY", "80%", "must be a share from 0 to 1, or at least 1048576 bytes"),
        ("MODEL_MEMORY", "inf", "must be a share from 0 to 1"),
        ("MODEL_MEMORY", "0", "must be a share from 0 to 1"),
        ("MODEL_MEMORY", "nan", "must be a share from 0 to 1"),
        ("REQUIRED_MODELS", "digits;mine", "use digits,pairwise or *"),
        ("DEFAULT_MODEL", "digits,pairwise", "is not a valid model name, such as digits"),
        ("DEVICES", "gpu", "'gpu' is not a device; a GPU has a number, as in cuda:0"),
        ("DEVICES", "cpu*0", "use auto, cpu, cpu*2 (two replicas) or cuda:0"),
        ("DEVICES", "cuda:0;cuda:1", "with commas between several"),
        ("DEVICES", "cpu,auto", "auto cannot be combined"),
        ("PLAN_PRECISION", "fp8", "'float32', 'bf16', 'fp16' or 'int8'"),
        ("BATCH_WAIT_MS", "nan", "finite number"),
        ("MAX_BODY_BYTES", "lots", "byte string; use 1048576, 16MiB or 1GB"),
        ("OPEN_METRICS", "perhaps", "use true or false"),
        ("TRUSTED_HOSTS", "https://a.example", "use example.com, *.example.com or *"),
        ("TRUSTED_HOSTS", "a.example:80", "use example.com, *.example.com or *"),
        ("TRUSTED_HOSTS", "a.*.example", "use example.com, *.example.com or *"),
        ("CORS_ORIGINS", "a.example", "use https://example.com:8443 or *"),
        ("CORS_ORIGINS", "https://a.example/", "use https://example.com:8443 or *"),
        ("CORS_ORIGINS", "https://*.example", "use https://example.com:8443 or *"),
        ("ACCESS_LOG", "some", "'off', 'errors', 'sampled' or 'all'"),
        ("ACCESS_LOG_SHARE", "1.1", "less than or equal to 1"),
    ],
)
def test_wrong_value_error_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str, right: str
) -> None:
    monkeypatch.setenv(PREFIX + name, text)
    with pytest.raises(SettingsError) as caught:
        load()
    assert str(caught.value).startswith(f"{PREFIX}{name}={text!r}: ")
    assert right in str(caught.value)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("TORCHLANE_PROT", "did you mean TORCHLANE_PORT?"),
        ("TORCHLANE_MAX_BATCHSIZE", "did you mean TORCHLANE_MAX_BATCH_SIZE?"),
        ("TORCHLANE_CACHE_BYTE", "did you mean TORCHLANE_CACHE_BYTES?"),
        ("torchlane_devcies", "did you mean TORCHLANE_DEVICES?"),
        ("TORCHLANE_FOO", "docs/settings.md lists all"),
    ],
)
def test_misspelt_name_is_refused_with_a_suggestion(
    monkeypatch: pytest.MonkeyPatch, name: str, hint: str
) -> None:
    monkeypatch.setenv(name, "1")
    with pytest.raises(SettingsError, match=rf"^{name} is not a setting; {re.escape(hint)}$"):
        load()


def test_load_test_variables_are_allowed() -> None:
    load_settings({"TORCHLANE_LOAD_API_KEY": "tl_x", "torchlane_load_model": "digits"})
    with pytest.raises(SettingsError, match="TORCHLANE_LOADS is not a setting"):
        load_settings({"TORCHLANE_LOADS": "1"})


def test_body_limit_must_fit_the_total_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHLANE_MAX_BODY_BYTES", "2GiB")
    with pytest.raises(SettingsError, match="BODIES_LIMIT_BYTES=1073741824 is less than"):
        load_settings({})
    monkeypatch.setenv("TORCHLANE_BODIES_LIMIT_BYTES", "2GiB")
    assert load_settings({}).bodies_limit_bytes == 2 << 30


def test_processes_share_limits_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    one = load_settings({}).of_one_process(4)
    assert one.cache_bytes == 64 << 20
    assert one.bodies_limit_bytes == one.queue_limit_bytes == 256 << 20
    assert load_settings({}).of_one_process(1) == load_settings({})
    monkeypatch.setenv("TORCHLANE_BODIES_LIMIT_BYTES", "20MiB")
    monkeypatch.setenv("TORCHLANE_QUEUE_LIMIT_BYTES", "1MiB")
    one = load_settings({}).of_one_process(4)
    assert one.bodies_limit_bytes == one.max_body_bytes == 16 << 20  # so that any body fits
    assert one.queue_limit_bytes == 1 << 20  # no more than all may have


@pytest.mark.parametrize(
    "url",
    [
        "http://hunter2@cache",
        "cache:6379/hunter2",
        "redis://:hunter2@",
        "redis://:hunter2@cache:port",
        "redis://:hunter2@cache:0",
        "redis://:hunter2/with/slashes@cache",
        "redis://:hunter2@cache/names",
        "redis://:hunter2@[::1",
        "unix://:hunter2@",
        "hunter2",
    ],
)
def test_wrong_cache_url_error_hides_the_password(
    monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("TORCHLANE_CACHE_URL", url)
    with pytest.raises(SettingsError, match=r"^TORCHLANE_CACHE_URL: it is no URL") as caught:
        load()
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("access_log", "log_level", "ratio"),
    [
        ("", "info", 0.0),  # failed and slow requests, by default
        ("", "warning", None),
        ("off", "info", None),
        ("errors", "error", None),
        ("sampled", "info", 0.01),
        ("all", "debug", 1.0),
    ],
)
def test_the_logged_share_of_requests(
    monkeypatch: pytest.MonkeyPatch, access_log: str, log_level: str, ratio: float | None
) -> None:
    monkeypatch.setenv("TORCHLANE_ACCESS_LOG", access_log)
    monkeypatch.setenv("TORCHLANE_LOG_LEVEL", log_level)
    assert load().access_log_ratio == ratio


def test_requests_cannot_be_logged_below_their_level(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHLANE_ACCESS_LOG", "all")
    monkeypatch.setenv("TORCHLANE_LOG_LEVEL", "warning")
    with pytest.raises(SettingsError, match="ACCESS_LOG=all writes lines of the level info, and"):
        load()


def test_a_second_cache_needs_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHLANE_CACHE_URL", "redis://:hunter2@cache")
    assert "hunter2" not in repr(load())
    monkeypatch.setenv("TORCHLANE_CACHE_BYTES", "0")
    with pytest.raises(SettingsError, match="TORCHLANE_CACHE_URL is set and") as caught:
        load()
    assert "hunter2" not in str(caught.value)


def test_entries_of_keys_are_not_shown() -> None:
    assert "sha256" not in repr(Settings(api_keys="a predict sha256:00", _env_file=None))


@pytest.mark.parametrize(
    "text", ["s3://key:secret@bucket/models", "https://a.example/m?sig=secret"]
)
def test_a_secret_in_a_url_is_refused_and_not_shown(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("TORCHLANE_MODEL_DIR", text)
    with pytest.raises(SettingsError, match="may have neither a login nor a query") as caught:
        load()
    assert "secret" not in str(caught.value)


def test_models_over_plain_http_need_signatures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHLANE_MODEL_DIR", "http://192.0.2.1/models")
    with pytest.raises(SettingsError, match=r"http://192\.0\.2\.1/models: models could be changed"):
        load()
    monkeypatch.setenv("TORCHLANE_TRUSTED_KEYS", "keys")
    assert load().model_dir == StoreUrl("http", "192.0.2.1", "models")
