"""Measurements in a file of one JSON object a line, which is only ever added to: a run that was stopped goes on."""

import copy
import json
import pathlib


CPU = "cpu"


class Results:
    """What is asked for and added is of one device. Rows that name none are the CPU's."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        self.device = CPU
        self.rows = {}
        if self.path.exists():
            for line in self.path.read_text().splitlines():
                self.keep(json.loads(line))

    def keep(self, row):
        self.rows[row.get("device", CPU), row["task"], row["strategy"], row["length"], row["trial"]] = row

    def on(self, device):
        """The same measurements, asked for and added as those of this device."""
        other = copy.copy(self)
        other.device = device
        return other

    def devices(self):
        """Those other than the CPU."""
        return sorted({device for device, *_ in self.rows} - {CPU})

    def has(self, task, strategy, length, trial):
        return (self.device, task, strategy, length, trial) in self.rows

    def add(self, row):
        row = {"device": self.device, **row}
        self.keep(row)
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def of(self, task, strategy=None, length=None):
        return [row for (d, t, s, n, _), row in sorted(self.rows.items())
                if d == self.device and t == task and strategy in (None, s) and length in (None, n)]

    def lengths(self, task):
        return sorted({row["length"] for row in self.of(task)})

    def failed(self, task, strategy, length):
        """Whether the two lengths before this one were tried and had no right answer: then it is not tried."""
        shorter = [n for n in sorted({row["length"] for row in self.of(task, strategy)}) if n < length][-2:]
        return len(shorter) == 2 and not any(row["right"] for n in shorter for row in self.of(task, strategy, n))
