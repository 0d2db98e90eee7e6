"""A Markdown page with tables, figures and claims."""

import pathlib


class Page:
    """figures: the folder of the figures, beside the page; draws: whether to make them."""

    def __init__(self, figures, draws):
        self.figures = pathlib.Path(figures)
        self.figures.mkdir(parents=True, exist_ok=True)
        self.lines, self.claims = [], []
        self.plt = None
        if draws:
            import matplotlib
            matplotlib.use("svg")
            matplotlib.rcParams.update({"svg.hashsalt": "quire", "svg.fonttype": "none", "figure.figsize": (6.4, 3.6),
                                        "font.size": 9})
            import matplotlib.pyplot
            self.plt = matplotlib.pyplot

    def heading(self, text, level=2):
        self.lines += ["", "#" * level + " " + text, ""]

    def text(self, *lines):
        self.lines += [*lines, ""]

    def claim(self, what, holds):
        """Something that the paper says and that was measured here."""
        self.claims.append({"claim": what, "holds": bool(holds)})
        self.lines.append(f"- {'holds' if holds else 'DOES NOT HOLD'}: {what}")

    def not_here(self, what, why):
        """Something that the paper says and that this scale does not show."""
        self.lines.append(f"- not seen at this scale: {what}. {why}")

    def fact(self, what):
        """A finding that nothing depends on."""
        self.lines.append(f"- {what}")

    def table(self, title, columns, rows):
        """rows: (name, cells) with a text for each column."""
        self.lines += [f"| {title} | " + " | ".join(str(c) for c in columns) + " |", "|---|" + "---:|" * len(columns)]
        self.lines += [f"| {name} | " + " | ".join(cells) + " |" for name, cells in rows]
        self.lines.append("")

    def curves(self, name, title, series, ylabel, log=False):
        """A figure of {label: {multiple: value}} over the length."""
        if not self.plt:
            return
        figure, axes = self.plt.subplots()
        for i, (label, points) in enumerate(series.items()):  # ten colours, then again with dashes
            axes.plot(list(points), list(points.values()), "o-" if i < 10 else "s--", color=f"C{i % 10}", markersize=3, label=label)
        axes.set_xscale("log", base=2)
        multiples = sorted({m for points in series.values() for m in points})
        axes.set_xticks(multiples, [f"{m}x" for m in multiples])
        if log:
            axes.set_yscale("log")
        axes.set_xlabel("length, in trained windows")
        axes.set_ylabel(ylabel)
        axes.set_title(title)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7, ncols=2)
        self.save(figure, name, title)

    def clouds(self, name, title, multiples, panels, xlabel, ticks):
        """Panels side by side of (ylabel, {label: {multiple: [(x, y)]}}): a marker for each label, a colour for each length."""
        if not self.plt:
            return
        figure, all_axes = self.plt.subplots(1, len(panels), figsize=(4.2 * len(panels), 3.8), layout="constrained")
        for axes, (ylabel, series) in zip(all_axes, panels):
            for i, points in enumerate(series.values()):
                for c, multiple in enumerate(multiples):
                    x, y = zip(*points[multiple])
                    axes.plot(x, y, marker="os^D"[i], linestyle=("-", "--", "", "")[i], color=f"C{c}", markersize=4)
            axes.set_xscale("log", base=2)
            axes.set_xticks(ticks, ticks)
            axes.set_xlabel(xlabel)
            axes.set_ylabel(ylabel)
            axes.grid(alpha=0.3)
        lines = [self.plt.Line2D([], [], color="black", marker="os^D"[i], linestyle=("-", "--", "", "")[i], markersize=4)
                 for i in range(len(panels[0][1]))] + [self.plt.Line2D([], [], color=f"C{c}") for c in range(len(multiples))]
        figure.legend(lines, [*panels[0][1], *(f"{m}x" for m in multiples)], fontsize=7, ncols=4, loc="outside lower center")
        figure.suptitle(title, fontsize=9)
        self.save(figure, name, title, tight=False)

    def heat_maps(self, name, title, grids):
        """Maps of depth against length, side by side: {label: JSON of `quire eval needle`}."""
        if not self.plt:
            return
        figure, all_axes = self.plt.subplots(1, len(grids), figsize=(2.6 * len(grids) + 0.6, 2.8), squeeze=False)
        for axes, (label, grid) in zip(all_axes[0], grids.items()):
            right = [[next(c["accuracy"] for c in grid["cells"] if c["length"] == length and c["depth"] == depth)
                      for length in grid["lengths"]] for depth in grid["depths"]]
            axes.imshow(right, vmin=0, vmax=1, cmap="RdYlGn", aspect="auto")
            axes.set_xticks(range(len(grid["lengths"])), grid["lengths"], rotation=60, fontsize=7)
            axes.set_yticks(range(len(grid["depths"])), [f"{d:.2f}" for d in grid["depths"]], fontsize=7)
            axes.set_title(label, fontsize=8)
        figure.suptitle(title, fontsize=9)
        self.save(figure, name, title)

    def save(self, figure, name, title, tight=True):
        if tight:
            figure.tight_layout()
        figure.savefig(self.figures / f"{name}.svg", metadata={"Date": None})
        self.plt.close(figure)
        self.lines += [f"![{title}]({self.figures.name}/{name}.svg)", ""]

    def markdown(self):
        return "\n".join(self.lines).strip() + "\n"


def percent(value):
    return f"{100 * value:.0f} %"


def cells(points, columns, show):
    return [show(points[c]) if c in points else "-" for c in columns]


def columns_of(series):
    return sorted({m for points in series.values() for m in points})


def length_table(page, title, series, show, beside=(), more=lambda name: []):
    """beside: further columns; more(name): their cells."""
    multiples = columns_of(series)
    page.table(title, [*(f"{m}x" for m in multiples), *beside],
               [(name, cells(p, multiples, show) + more(name)) for name, p in series.items()])
