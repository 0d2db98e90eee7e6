"""Python binding of Quire, a runtime for language models that read long documents. See README.md."""

from ._calls import Cancel, QuireError, version
from ._model import Adapter, Model, Tokenizer, chat_templates, describe_files, quantizations, quantize
from ._runtime import Runtime
from ._session import Edited, Session
from ._snapshots import Store, describe_snapshot, verify_snapshot
from ._strategies import strategies, strategy_describe, strategy_positions
from ._stream import Event, Stream

__all__ = ["Adapter", "Cancel", "Edited", "Event", "Model", "QuireError", "Runtime", "Session", "Store", "Stream", "Tokenizer",
           "chat_templates", "describe_files", "describe_snapshot", "quantizations", "quantize", "strategies",
           "strategy_describe", "strategy_positions", "verify_snapshot", "version"]
