"""Python binding of Quire, a runtime for language models that read long documents. See README.md."""

from ._api import (Adapter, Cancel, Edited, Event, Model, QuireError, Runtime, Session, Store, Stream, Tokenizer, chat_templates,
                   describe_files, describe_snapshot, quantizations, quantize, strategies, strategy_describe,
                   strategy_positions, verify_snapshot, version)

__all__ = ["Adapter", "Cancel", "Edited", "Event", "Model", "QuireError", "Runtime", "Session", "Store", "Stream", "Tokenizer",
           "chat_templates", "describe_files", "describe_snapshot", "quantizations", "quantize", "strategies",
           "strategy_describe", "strategy_positions", "verify_snapshot", "version"]
