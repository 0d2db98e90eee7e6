"""Models, what belongs to one, and the files that they come from."""

import json
from ctypes import byref, c_int32, c_size_t

from . import _ffi
from ._arguments import _chat, _session_options
from ._calls import _Handle, _call, _choice, _fields, _ids, _options, _pairs, _path, _progress, _text
from ._library import lib
from ._names import ACTIVATIONS, LOADS, TYPES
from ._session import Session


class Model(_Handle):
    _release = "quire_model_release"

    def __init__(self, runtime, path, weight_type="default", load="default", cancel=None, progress=None, merge=(),
                 beacon=None, device="auto", activations="default"):
        report = _progress(progress)
        merge = [(_path(source), scale) for source, scale in _pairs(merge)]
        sources = (_ffi.AdapterSource * len(merge))(*[(source, len(source), scale) for source, scale in merge])
        device = device.encode()
        beacon = _path(beacon) if beacon is not None else None
        options = _options(_ffi.ModelOptions, load=_choice("load", load, LOADS),
                           weight_type=_choice("weight_type", weight_type, TYPES),
                           activation_type=_choice("activations", activations, ACTIVATIONS), beacon_path=beacon,
                           beacon_path_len=len(beacon or b""), device=device,
                           device_len=len(device), cancel=cancel._handle if cancel else None, progress=report,
                           merge=sources if len(sources) else None, n_merge=len(sources))
        path = _path(path)
        self._own(runtime, lib.quire_model_load, runtime._handle, path, len(path), byref(options))

    @property
    def info(self):
        """quire_model_info as a dict; weight_type by name."""
        info = _options(_ffi.ModelInfo)
        _call(lib.quire_model_get_info, self._handle, byref(info))
        names = {number: name for name, number in TYPES.items()}
        return {**_fields(info), "weight_type": names.get(info.weight_type, "unknown")}

    def check(self, strategy="full", **options):
        """Raises what Session(model, strategy, **options) would raise, and makes nothing."""
        _call(lib.quire_model_check_session, self._handle, byref(_session_options(strategy, **options)))

    def estimate(self, n_tokens, strategy="full", **options):
        """quire_rate_estimate as a dict: how long such a Session would take to read n_tokens tokens and to answer."""
        estimate = _options(_ffi.RateEstimate)
        _call(lib.quire_model_estimate_rates, self._handle, byref(_session_options(strategy, **options)), n_tokens,
              byref(estimate))
        return _fields(estimate)

    def metadata(self, key):
        return _text(lib.quire_model_get_metadata, self._handle, key.encode(), len(key.encode())).decode()

    @property
    def tokenizer(self):
        return Tokenizer(self)

    def load_adapter(self, path, progress=None, cancel=None):
        """Loads a PEFT LoRA directory for sessions of this model. progress and cancel: as in Runtime.load."""
        return Adapter(self, path, progress, cancel)

    def session(self, strategy="full", **options):
        return Session(self, strategy, **options)

    def load_session(self, file, strategy=None, **options):
        """A session that goes on where one was saved; options as of session(), the saved session's where not given.
        file: a path, or a binary file object that can seek. Such an object belongs to the session, which reads all of
        it whenever it needs a part, on threads of the runtime, as long as the session or a fork of it lives."""
        return Session(self, strategy, snapshot=file, **options)

    def describe_strategy(self, strategy="auto", **options):
        """The canonical strategy that session(strategy, **options) would have, without creating it."""
        return _text(lib.quire_model_describe_strategy, self._handle,
                     byref(_session_options(strategy, **options))).decode()


class Adapter(_Handle):
    """A LoRA adapter of one model, for Session(adapters=[...])."""

    _release = "quire_adapter_release"
    FLAGS = {"replaces_embedding": 1, "replaces_lm_head": 2, "replaces_norms": 4, "changes_queries_or_keys": 8}

    def __init__(self, model, path, progress=None, cancel=None):
        path, report = _path(path), _progress(progress)
        options = _options(_ffi.AdapterOptions, cancel=cancel._handle if cancel else None, progress=report)
        self._own(model, lib.quire_adapter_load, model._handle, path, len(path), byref(options))

    @property
    def info(self):
        """quire_adapter_info as a dict; each flag as a bool."""
        info = _options(_ffi.AdapterInfo)
        _call(lib.quire_adapter_get_info, self._handle, byref(info))
        return {**_fields(info), **{name: bool(info.flags & bit) for name, bit in self.FLAGS.items()}}

    def metadata(self, key):
        """ "identity" or "base_model"."""
        return _text(lib.quire_adapter_get_metadata, self._handle, key.encode(), len(key.encode())).decode()


class Tokenizer(_Handle):
    """Of a Model; or, of a Runtime and a path, one alone (Runtime.tokenizer)."""

    _release = "quire_tokenizer_release"

    def __init__(self, parent, path=None):
        if path is None:
            self._own(parent, lib.quire_model_get_tokenizer, parent._handle)
        else:
            path = _path(path)
            self._own(parent, lib.quire_tokenizer_load, parent._handle, path, len(path))

    def encode(self, text, parse_special=False, bos=True, continued=False):
        data = text.encode()
        flags = parse_special * 1 | (not bos) * 2 | continued * 4
        needed = c_size_t()
        _call(lib.quire_tokenizer_encode, self._handle, data, len(data), flags, None, 0, byref(needed))
        ids = (c_int32 * needed.value)()
        _call(lib.quire_tokenizer_encode, self._handle, data, len(data), flags, ids, needed.value, byref(needed))
        return list(ids)

    def decode(self, ids, special=False):
        return _text(lib.quire_tokenizer_decode, self._handle, *_ids(ids), int(special)).decode()

    @property
    def chat_template(self):
        """The name of the checkpoint's own chat template."""
        return _text(lib.quire_tokenizer_get_chat_template, self._handle).decode()

    def render_chat(self, messages, **options):
        """(role, text) messages as one text. options: template (a name), date ("2025-06-30"), answer=False (do not
        begin one), thinking=False."""
        return _text(lib.quire_tokenizer_render_chat, self._handle, *_chat(messages, **options)).decode()

    def encode_chat(self, messages, **options):
        """The same as ids."""
        arguments, needed = _chat(messages, **options), c_size_t()
        _call(lib.quire_tokenizer_encode_chat, self._handle, *arguments, None, 0, byref(needed))
        ids = (c_int32 * needed.value)()
        _call(lib.quire_tokenizer_encode_chat, self._handle, *arguments, ids, len(ids), byref(needed))
        return list(ids)

    def token_bytes(self, token):
        return _text(lib.quire_tokenizer_get_token_bytes, self._handle, token)

    def is_eos(self, token):
        return bool(lib.quire_tokenizer_is_eos(self._handle, token))

    @property
    def bos(self):
        """Beginning-of-sequence id, or None."""
        bos = lib.quire_tokenizer_get_bos(self._handle)
        return None if bos < 0 else bos

    @property
    def vocab_size(self):
        return lib.quire_tokenizer_get_vocab_size(self._handle)


def chat_templates():
    """The known chat templates: a list of dicts with "name" and "description"."""
    return json.loads(_text(lib.quire_chat_get_list))["templates"]


def describe_files(path):
    """What the files of a model hold, without loading it: see quire_model_describe_files in quire.h."""
    path = _path(path)
    return json.loads(_text(lib.quire_model_describe_files, path, len(path)))


def quantizations():
    """The names of the recipes that quantize() knows."""
    return lib.quire_get_quantizations().decode().split(", ")


def quantize(path, out, recipe="q4_k_m", threads=0, progress=None, cancel=None):
    """Writes a model as a GGUF file. progress and cancel: as in Runtime.load."""
    report = _progress(progress)
    path, out, recipe = _path(path), _path(out), recipe.encode()
    options = _options(_ffi.QuantizeOptions, n_threads=threads, recipe=recipe, recipe_len=len(recipe),
                       cancel=cancel._handle if cancel else None, progress=report)
    _call(lib.quire_model_quantize, path, len(path), out, len(out), byref(options))
