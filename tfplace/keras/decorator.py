"""The decorator `placed`: `place_model` for a function that builds a model."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, overload

import keras

from tfplace.keras.model import place_model

P = ParamSpec("P")
ModelT = TypeVar("ModelT", bound=keras.Model)


@overload
def placed(function: Callable[P, ModelT], /) -> Callable[P, ModelT]: ...


@overload
def placed(
  **options: Any,
) -> Callable[[Callable[P, ModelT]], Callable[P, ModelT]]: ...


def placed(function: Any = None, /, **options: Any) -> Any:
  """Places the model that the decorated function returns.

      @tfplace.placed
      def build(): ...

      @tfplace.placed(strategy="m_etf", budget_s=10)
      def build(): ...

  Args:
    function: builds and returns a Keras model.
    **options: the keywords of `place_model`.

  Raises:
    ApplyError: when called, if the function returns no Keras 3 model.
    TypeError: an unknown keyword, or no function.
  """
  _check_options(options)
  if function is None:
    return functools.partial(_decorate, options)
  if not callable(function):
    raise TypeError(f"placed() decorates a function, not {function!r:.60}")
  return _decorate(options, function)


def _check_options(options: dict[str, Any]) -> None:
  known = inspect.signature(place_model).parameters
  for name in options:
    if name not in known or name == "model":
      raise TypeError(f"placed() has no keyword {name!r}")


def _decorate(
  options: dict[str, Any], function: Callable[P, ModelT]
) -> Callable[P, ModelT]:
  @functools.wraps(function)
  def build(*args: P.args, **kwargs: P.kwargs) -> ModelT:
    return place_model(function(*args, **kwargs), **options)

  return build
