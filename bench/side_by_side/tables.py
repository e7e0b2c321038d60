"""Formats Markdown tables."""


def format_table(header, rows):
    """Returns a Markdown table. Vertical bars in cells are escaped, and line breaks become spaces. Error ValueError: a row
    has another number of cells than the header."""

    def format_row(cells):
        return "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"

    for row in rows:
        if len(row) != len(header):
            raise ValueError(f"a row of {len(row)} cells below a header of {len(header)}: {row}")
    return "\n".join([format_row(header), "|" + "---|" * len(header), *(format_row(row) for row in rows)])
