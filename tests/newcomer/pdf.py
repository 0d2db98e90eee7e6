"""A PDF of plain text, as a word processor would print a report: enough for pdftotext."""


def write_pdf(path, lines, per_page):
    """lines: ASCII. The number of pages."""
    pages = [lines[i:i + per_page] for i in range(0, len(lines), per_page)]
    kids = " ".join(f"{4 + 2 * i} 0 R" for i in range(len(pages)))
    objects = ["<< /Type /Catalog /Pages 2 0 R >>", f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>",
               "<< /Type /Font /Subtype /Type1 /BaseFont /Times-Roman >>"]
    for i, page in enumerate(pages):
        escaped = (line.replace("\\", "\\\\").replace("(", "\\(").replace(")", "\\)") for line in page)
        text = "BT /F1 11 Tf 16 TL 72 770 Td " + " ".join(f"({line}) Tj T*" for line in escaped) + " ET"
        objects.append("<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Resources << /Font << /F1 3 0 R >> >> "
                       f"/Contents {5 + 2 * i} 0 R >>")
        objects.append(f"<< /Length {len(text)} >>\nstream\n{text}\nendstream")
    out, places = "%PDF-1.4\n", []
    for i, body in enumerate(objects):
        places.append(len(out))
        out += f"{i + 1} 0 obj\n{body}\nendobj\n"
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    trailer = f"trailer << /Size {len(objects) + 1} /Root 1 0 R >>\nstartxref\n{len(out)}\n%%EOF\n"
    path.write_bytes((out + f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}{trailer}").encode("ascii"))
    return len(pages)
