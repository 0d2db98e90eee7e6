"""Does the steps of tests/conformance/*.json through the Python binding. tests/conformance/README.md says what they are."""

import itertools
import json
import math
import pathlib
import tempfile

import quire

SOURCE = pathlib.Path(__file__).resolve().parent.parent.parent
FILES = sorted((SOURCE / "tests" / "conformance").glob("*.json"))


class Case:
    """What the steps of one case work on."""

    def __init__(self, model):
        self._model = model
        self._sessions = {}
        self._folder = tempfile.TemporaryDirectory()

    def close(self):
        for session in self._sessions.values():
            session.close()
        self._folder.cleanup()

    def do(self, step):
        """The step's result. Raises quire.QuireError."""
        arguments = {key: value for key, value in step.items() if key not in ("do", "expect", "error")}
        if "session" in arguments:
            arguments["session"] = self._sessions[arguments["session"]]
        return getattr(self, "do_" + step["do"])(**arguments)

    def _path(self, name):
        return pathlib.Path(self._folder.name) / f"{name}.quire"

    def do_version(self):
        return {"version": quire.version()}

    def do_encode(self, text, add_bos=True, parse_special=False, first=True):
        return {"ids": self._model.tokenizer.encode(text, parse_special, add_bos, not first)}

    def do_decode(self, ids):
        return {"text": self._model.tokenizer.decode(ids)}

    def do_describe_strategy(self, strategy, train_len):
        return {"canonical": quire.strategy_describe(strategy, train_len)}

    def do_session(self, options=None, strategy=None, **names):
        options = dict(options or {})
        old_after = options.pop("old_after", 0)
        if old_after:
            options["old_after"] = max(old_after, 0)  # the binding says 0 for at once
        self._sessions[names["as"]] = self._model.session(strategy, **options)

    def do_feed(self, session, text, add_bos=True, parse_special=False):
        session.feed(text, parse_special, add_bos)
        return self.do_counts(session)

    def do_feed_tokens(self, session, ids):
        session.feed_tokens(ids)
        return self.do_counts(session)

    def do_feed_labelled(self, session, text, labels):
        session.feed(text, labels=[tuple(label) for label in labels])
        return self.do_counts(session)

    def do_feed_messages(self, session, messages, template=None, answer=True):
        session.feed_messages(messages, template=template, answer=answer)
        return self.do_counts(session)

    def do_stream(self, session, options, take=None):
        options = {"top_logprobs" if key == "n_top_logprobs" else key: value for key, value in options.items()}
        with session.stream(**options) as stream:
            events = []
            for event in stream:
                events.append(event)
                if take is not None and sum(event.kind == "token" for event in events) == take:
                    break
        tokens = [event for event in events if event.kind == "token"]
        end = events[-1]
        return {"tokens": [event.token for event in tokens], "logprobs": [event.logprob for event in tokens],
                "text": "".join(event.text for event in events), "finish": end.finish_reason,
                "stop_index": end.stop_index, "end_token": end.token, "n_tokens": end.n_tokens,
                "kinds": [kind for kind, _ in itertools.groupby(event.kind for event in events)]}

    def do_counts(self, session):
        return {"n_tokens": session.n_tokens, "n_pending": session.n_pending}

    def do_tokens(self, session, first, n):
        return {"ids": session.tokens[first:first + n]}

    def do_truncate(self, session, n_tokens):
        session.truncate(n_tokens)
        return self.do_counts(session)

    def do_discard_pending(self, session):
        session.discard_pending()
        return self.do_counts(session)

    def do_reset(self, session):
        session.reset()
        return self.do_counts(session)

    def do_edit(self, session, text, reuse="exact"):
        return session.edit(text, reuse)._asdict()

    def do_scores(self, session, first, n):
        return {"values": session.scores(first, n)}

    def do_argmax(self, session, token):
        row = session.logits(token)[0:1].cast("B").cast("f").tolist()
        return {"id": row.index(max(row))}

    def do_stats(self, session):
        return session.stats

    def do_strategy(self, session):
        return {"canonical": session.strategy}

    def do_label_attention(self, session):
        return {"shares": [[label["id"], label["share"]] for label in session.label_attention()]}

    def do_label_shares(self, session):
        return {"shares": [[label["id"], label["share"]] for label in session.label_shares()]}

    def do_passages(self, session, most):
        return {"passages": [[p["feed"], p["begin"], p["end"], p["label_id"]] for p in session.passages(most=most)]}

    def do_fork(self, session, **names):
        self._sessions[names["as"]] = session.fork()

    def do_save(self, session, to):
        session.save(self._path(to))

    def do_load(self, **names):
        session = self._sessions[names["as"]] = self._model.load_session(self._path(names["from"]))
        return self.do_counts(session)

    def do_close(self, session):
        session.close()


def agree(found, expected):
    if isinstance(expected, float):
        return math.isclose(found, expected, rel_tol=1e-4, abs_tol=1e-4)
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(agree, found, expected))
    return type(found) is type(expected) and found == expected


def files():
    for path in FILES:
        yield path, json.loads(path.read_text())
