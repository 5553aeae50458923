"""Errors of the OpenAI API, in the form that vLLM gives them."""

from typing import Any


class ApiError(Exception):
    """The call can't be served. `type` is vLLM's word for the class of error."""

    def __init__(
        self, status: int, type: str, message: str, *, param: str | None = None, retry_after: int | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.type = type
        self.message = message
        self.param = param
        self.retry_after = retry_after

    def body(self) -> dict[str, Any]:
        """The JSON that the client gets."""
        return {
            "error": {"message": self.message, "type": self.type, "param": self.param, "code": self.status},
        }

    def __repr__(self) -> str:
        return f"<ApiError {self.status} {self.type}: {self.message}>"


def bad_request(message: str, param: str | None = None) -> ApiError:
    return ApiError(400, "BadRequestError", message, param=param)


def unknown_model(model: str) -> ApiError:
    return ApiError(404, "NotFoundError", f"The model `{model}` does not exist.", param="model")


def overloaded(message: str) -> ApiError:
    return ApiError(503, "ServiceUnavailableError", message, retry_after=1)
