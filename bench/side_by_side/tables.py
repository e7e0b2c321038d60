"""Tables of Markdown."""


def table(head, rows):
    """A table; bars in cells are escaped, line ends become blanks."""

    def line(cells):
        return "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"

    for row in rows:
        if len(row) != len(head):
            raise ValueError(f"a row of {len(row)} cells below a head of {len(head)}: {row}")
    return "\n".join([line(head), "|" + "---|" * len(head), *(line(row) for row in rows)])
