"""What a handler is told of its model and of the requests of a batch: `ts.context`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torchlane.torchserve.metrics import Metrics

SERVER_VERSION = "0.12.0"  # of the TorchServe whose interface this is


class RequestProcessor:
    """Headers and status of a request.

    Args:
        request_header: its headers, with names in lower case.
    """

    def __init__(self, request_header: Mapping[str, str]) -> None:
        self._request = request_header
        self._response: dict[str, str] = {}
        self._status: tuple[int | None, str | None] = 200, None

    def get_request_property(self, key: str) -> str | None:
        """A header of the request; None if the handler does not get it."""
        return self._request.get(key.lower())

    def get_request_properties(self) -> Mapping[str, str]:
        """The headers of the request."""
        return self._request

    def report_status(self, code: int | None, reason_phrase: str | None = None) -> None:
        """Set the status of the answer."""
        self._status = code, reason_phrase

    def get_response_status_code(self) -> int | None:
        """The status of the answer."""
        return self._status[0]

    def get_response_status_phrase(self) -> str | None:
        """The reason of the status, which is not sent."""
        return self._status[1]

    def add_response_property(self, key: str, value: str) -> None:
        """Set a header of the answer; only content-type is sent."""
        self._response[key.lower()] = value

    def get_response_headers(self) -> Mapping[str, str]:
        """The headers of the answer."""
        return self._response

    def get_response_header(self, key: str) -> str | None:
        """A header of the answer."""
        return self._response.get(key.lower())


class Context:
    """See the module.

    Args:
        model_name: of the archive.
        model_dir: the folder with its files.
        manifest: of the archive.
        batch_size: the most requests of a batch.
        model_yaml_config: what the archive's configuration file has.

    Attributes:
        system_properties: by name; `gpu_id` is None.
        metrics: takes metrics.
        request_ids: of the requests of the batch, by index.
        request_processor: of each request of the batch.
        served_model: what handlers use as `self.model`; None: they load the archive's model.
    """

    def __init__(
        self,
        model_name: str,
        model_dir: str,
        manifest: Mapping[str, Any],
        batch_size: int,
        model_yaml_config: Mapping[str, Any],
    ) -> None:
        self.model_name = model_name
        self.manifest = manifest
        self.system_properties: Mapping[str, Any] = {
            "model_dir": model_dir,
            "gpu_id": None,
            "batch_size": batch_size,
            "server_name": "Torchlane",
            "server_version": SERVER_VERSION,
            "limit_max_image_pixels": True,
        }
        self.metrics = Metrics()
        self.model_yaml_config = model_yaml_config
        self.request_ids: Mapping[int, str] | None = None
        self.request_processor: Sequence[RequestProcessor] = ()
        self.served_model: Any = None
        self.stopping_criteria: Any = None

    def get_request_id(self, idx: int = 0) -> str | None:
        """The id of a request."""
        return None if self.request_ids is None else self.request_ids.get(idx)

    def get_sequence_id(self, idx: int = 0) -> str:
        """The id of a sequence of requests: there are none here."""
        return ""

    def get_request_header(self, idx: int, key: str) -> str | None:
        """A header of a request; None if the handler does not get it."""
        return self.request_processor[idx].get_request_property(key)

    def get_all_request_header(self, idx: int) -> Mapping[str, str]:
        """The headers of a request."""
        return self.request_processor[idx].get_request_properties()

    def set_response_content_type(self, idx: int, value: str) -> None:
        """Set the media type of an answer."""
        self.set_response_header(idx, "content-type", value)

    def get_response_content_type(self, idx: int) -> str | None:
        """The media type of an answer; None if none was set."""
        return self.request_processor[idx].get_response_header("content-type")

    def set_response_header(self, idx: int, key: str, value: str) -> None:
        """Set a header of an answer; only content-type is sent."""
        self.request_processor[idx].add_response_property(key, value)

    def get_response_headers(self, idx: int) -> Mapping[str, str]:
        """The headers of an answer."""
        return self.request_processor[idx].get_response_headers()

    def get_response_status(self, idx: int) -> tuple[int | None, str | None]:
        """The status of an answer, and its reason."""
        request = self.request_processor[idx]
        return request.get_response_status_code(), request.get_response_status_phrase()

    def set_response_status(self, code: int = 200, phrase: str = "", idx: int = 0) -> None:
        """Set the status of an answer."""
        self.request_processor[idx].report_status(code, phrase)

    def set_all_response_status(self, code: int = 200, phrase: str = "") -> None:
        """Set the status of all answers of the batch."""
        for request in self.request_processor:
            request.report_status(code, phrase)
