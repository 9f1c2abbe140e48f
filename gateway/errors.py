"""Everything that can go wrong for a client, as one small tree.

GatewayError                 status, code, kind, message, param, retry_after
├── InvalidRequest           400, or another 4xx: the client must change the request
├── Unauthorized             401
├── ModelNotFound            404
├── NoEngine                 503: no engine that has the model can take the request now
├── EngineFailed             502: the engine broke off, or answered something that is not an answer
│   ├── EngineUnreachable    502: no connection could be made
│   ├── EngineReported       502: it said in the middle of a stream that it failed
│   └── EngineTimeout        504: a limit passed
└── EngineRefused            the engine's own 4xx or 5xx, passed on
"""


class GatewayError(Exception):
    """An error that a client may see: `message` holds no address, credential or prompt text.

    `kind` is OpenAI's `type`. `retry_after` is in seconds.
    """

    status: int = 500
    code: str = "internal_error"
    kind: str = "server_error"
    own_words: bool = True
    """Whether `message` is the gateway's. An engine's words may quote the prompt, so they are not logged."""

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        code: str | None = None,
        kind: str | None = None,
        param: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after = retry_after
        if status is not None:
            self.status = status
        if code is not None:
            self.code = code
        if kind is not None:
            self.kind = kind


class InvalidRequest(GatewayError):
    """The request cannot be served as it is; `param` names the field at fault where one is."""

    status = 400
    code = "invalid_request"
    kind = "invalid_request_error"


class Unauthorized(GatewayError):
    status = 401
    code = "invalid_api_key"
    kind = "authentication_error"


class ModelNotFound(GatewayError):
    status = 404
    code = "model_not_found"
    kind = "invalid_request_error"


class NoEngine(GatewayError):
    status = 503
    code = "no_engine_available"
    kind = "service_unavailable_error"


class EngineFailed(GatewayError):
    status = 502
    code = "engine_failed"
    kind = "engine_error"


class EngineUnreachable(EngineFailed):
    code = "engine_unreachable"


class EngineReported(EngineFailed):
    code = "engine_error"
    own_words = False


class EngineTimeout(EngineFailed):
    status = 504
    code = "engine_timeout"


class EngineRefused(GatewayError):
    """An error answer of the engine. `body` is what it sent when that already is an OpenAI-shaped error."""

    code = "engine_error"
    kind = "engine_error"
    own_words = False

    def __init__(
        self, message: str, *, status: int, body: bytes | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message, status=status, retry_after=retry_after)
        self.body = body
