"""Models, what belongs to one, and the files that they come from."""

from __future__ import annotations

from ctypes import byref
from typing import TYPE_CHECKING, Iterable, List, Optional, Sequence, Tuple, Union

from . import _ffi
from ._arguments import _chat, _model_options, _session_options
from ._calls import _Handle, _Watched, _ask, _call, _encoded, _fields, _ids, _info, _options, _path, _text
from ._library import lib
from ._names import TYPES
from ._session import Session
from ._types import ChatOptions, File, Info, Infos, Messages, Path, Progress, SessionOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._calls import Cancel
    from ._runtime import Runtime


class Model(_Handle):
    _release = "quire_model_release"

    def __init__(self, runtime: Runtime, path: Path, weight_type: str = "default", load: str = "default",
                 cancel: Optional[Cancel] = None, progress: Optional[Progress] = None,
                 merge: Sequence[Union[Path, Tuple[Path, float]]] = (), beacon: Optional[Path] = None,
                 device: str = "auto", activations: str = "default", packed_directory: Optional[Path] = None) -> None:
        path = _path(path)
        with _Watched(progress, cancel) as watched:
            options = _model_options(weight_type, load, merge, beacon, device, activations, packed_directory, **watched)
            self._own(runtime, lib.quire_model_load, runtime._handle, path, len(path), byref(options))
        self._vocab_size = self.info["vocab_size"]  # its sessions ask for it, also when it was closed

    @property
    def info(self) -> Info:
        """quire_model_info as a dict; weight_type by name."""
        info = _options(_ffi.ModelInfo)
        _call(lib.quire_model_get_info, self._handle, byref(info))
        names = {number: name for name, number in TYPES.items()}
        return {**_fields(info), "weight_type": names.get(info.weight_type, "unknown")}

    def check(self, strategy: str = "full", **options: Unpack[SessionOptions]) -> None:
        """Raises what Session(model, strategy, **options) would raise, and makes nothing."""
        _call(lib.quire_model_check_session, self._handle, byref(_session_options(strategy, **options)))

    def estimate(self, n_tokens: int, strategy: str = "full", **options: Unpack[SessionOptions]) -> Info:
        """quire_rate_estimate as a dict: how long such a Session would take to read n_tokens tokens and to answer."""
        estimate = _options(_ffi.RateEstimate)
        _call(lib.quire_model_estimate_rates, self._handle, byref(_session_options(strategy, **options)), n_tokens,
              byref(estimate))
        return _fields(estimate)

    def metadata(self, key: str) -> str:
        return _text(lib.quire_model_get_metadata, self._handle, key.encode(), len(key.encode())).decode()

    @property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer(self)

    def load_adapter(self, path: Path, progress: Optional[Progress] = None, cancel: Optional[Cancel] = None) -> Adapter:
        """Loads a PEFT LoRA directory for sessions of this model. progress and cancel: as in Runtime.load."""
        return Adapter(self, path, progress, cancel)

    def session(self, strategy: Optional[str] = "full", **options: Unpack[SessionOptions]) -> Session:
        return Session(self, strategy, **options)

    def load_session(self, file: File, strategy: Optional[str] = None, **options: Unpack[SessionOptions]) -> Session:
        """A session that goes on where one was saved; options as of session(), the saved session's where not given.
        file: a path, or a binary file object that can seek. Such an object belongs to the session, which reads all of
        it whenever it needs a part, on threads of the runtime, as long as the session or a fork of it lives."""
        return Session(self, strategy, snapshot=file, **options)

    def describe_strategy(self, strategy: str = "auto", **options: Unpack[SessionOptions]) -> str:
        """The canonical strategy that session(strategy, **options) would have, without creating it."""
        return _text(lib.quire_model_describe_strategy, self._handle,
                     byref(_session_options(strategy, **options))).decode()


class Adapter(_Handle):
    """A LoRA adapter of one model, for Session(adapters=[...])."""

    _release = "quire_adapter_release"
    FLAGS = {"replaces_embedding": 1, "replaces_lm_head": 2, "replaces_norms": 4, "changes_queries_or_keys": 8}

    def __init__(self, model: Model, path: Path, progress: Optional[Progress] = None,
                 cancel: Optional[Cancel] = None) -> None:
        path = _path(path)
        with _Watched(progress, cancel) as watched:
            options = _options(_ffi.AdapterOptions, **watched)
            self._own(model, lib.quire_adapter_load, model._handle, path, len(path), byref(options))

    @property
    def info(self) -> Info:
        """quire_adapter_info as a dict; each flag as a bool."""
        info = _options(_ffi.AdapterInfo)
        _call(lib.quire_adapter_get_info, self._handle, byref(info))
        return {**_fields(info), **{name: bool(info.flags & bit) for name, bit in self.FLAGS.items()}}

    def metadata(self, key: str) -> str:
        """ "identity" or "base_model"."""
        return _text(lib.quire_adapter_get_metadata, self._handle, key.encode(), len(key.encode())).decode()


class Tokenizer(_Handle):
    """Of a Model; or, of a Runtime and a path, one alone (Runtime.tokenizer)."""

    _release = "quire_tokenizer_release"

    def __init__(self, parent: Union[Model, Runtime], path: Optional[Path] = None) -> None:
        if path is None:
            self._own(parent, lib.quire_model_get_tokenizer, parent._handle)
        else:
            path = _path(path)
            self._own(parent, lib.quire_tokenizer_load, parent._handle, path, len(path))

    def encode(self, text: str, parse_special: bool = False, bos: bool = True, continued: bool = False) -> List[int]:
        data = text.encode()
        flags = parse_special * 1 | (not bos) * 2 | continued * 4
        return _encoded(len(data) // 2 + 8, lib.quire_tokenizer_encode, self._handle, data, len(data), flags)

    def decode(self, ids: Iterable[int], special: bool = False) -> str:
        return _text(lib.quire_tokenizer_decode, self._handle, *_ids(ids), int(special)).decode()

    @property
    def chat_template(self) -> str:
        """The name of the checkpoint's own chat template."""
        return _text(lib.quire_tokenizer_get_chat_template, self._handle).decode()

    def render_chat(self, messages: Messages, **options: Unpack[ChatOptions]) -> str:
        """(role, text) messages as one text. options: template (a name), date ("2025-06-30"), answer=False (do not
        begin one), thinking=False."""
        return _text(lib.quire_tokenizer_render_chat, self._handle, *_chat(messages, **options)).decode()

    def encode_chat(self, messages: Messages, **options: Unpack[ChatOptions]) -> List[int]:
        """The same as ids."""
        array, n_messages, chosen = _chat(messages, **options)
        likely = sum(message.text_len for message in array) // 2 + 64
        return _encoded(likely, lib.quire_tokenizer_encode_chat, self._handle, array, n_messages, chosen)

    def token_bytes(self, token: int) -> bytes:
        return _text(lib.quire_tokenizer_get_token_bytes, self._handle, token)

    def is_eos(self, token: int) -> bool:
        return bool(_ask(lib.quire_tokenizer_is_eos, self._handle, token))

    @property
    def bos(self) -> Optional[int]:
        """Beginning-of-sequence id, or None."""
        bos: int = lib.quire_tokenizer_get_bos(self._handle)
        return None if bos < 0 else bos

    @property
    def vocab_size(self) -> int:
        return int(lib.quire_tokenizer_get_vocab_size(self._handle))


def chat_templates() -> Infos:
    """The known chat templates: a list of dicts with "name" and "description"."""
    templates: Infos = _info(lib.quire_chat_get_list)["templates"]
    return templates


def describe_files(path: Path) -> Info:
    """What the files of a model hold, without loading it: see quire_model_describe_files in quire.h."""
    path = _path(path)
    return _info(lib.quire_model_describe_files, path, len(path))


def quantizations() -> List[str]:
    """The names of the recipes that quantize() knows."""
    names: bytes = lib.quire_get_quantizations()
    return names.decode().split(", ")


def quantize(path: Path, out: Path, recipe: str = "q4_k_m", threads: int = 0, progress: Optional[Progress] = None,
             cancel: Optional[Cancel] = None) -> None:
    """Writes a model as a GGUF file. progress and cancel: as in Runtime.load."""
    path, out, recipe = _path(path), _path(out), recipe.encode()
    with _Watched(progress, cancel) as watched:
        options = _options(_ffi.QuantizeOptions, n_threads=threads, recipe=recipe, recipe_len=len(recipe), **watched)
        _call(lib.quire_model_quantize, path, len(path), out, len(out), byref(options))
