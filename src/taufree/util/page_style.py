"""The look of a page, light or dark as the reader's system is, and the script of its tables' buttons."""

from __future__ import annotations

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"

CSS = f"""
:root{{color-scheme:light dark;--page:#fff;--page0:#fff0;--text:#1f2933;--soft:#3e4c59;--caption:#52606d;
--line:#d9e2ec;--rule:#e4e7eb;--head:#1f29330b;--shade:#1f293340;--shade0:#1f293300;--stress:#ffbf001f}}
*{{box-sizing:border-box}}
html{{overflow-y:scroll}}
body{{margin:0;background:var(--page);color:var(--text);font:16px/1.55 {FONT}}}
main{{max-width:960px;margin:0 auto;padding:28px 20px 64px;overflow-wrap:break-word}}
h1{{font-size:1.75rem;line-height:1.2;margin:0 0 .5rem}}
h2{{font-size:1.25rem;line-height:1.3;margin:2.4rem 0 .6rem}}
p,ul{{margin:.6rem 0;max-width:46rem}}
ul{{padding-left:1.25rem}}
li{{margin:.35rem 0}}
.lead{{font-size:1.1rem;color:var(--soft)}}
.scroll{{overflow-x:auto;margin:0 0 .5rem;border:1px solid var(--line);border-radius:6px;
background:linear-gradient(to left,var(--page) 12px,var(--page0)) right/24px 100% no-repeat local,
linear-gradient(to left,var(--shade),var(--shade0)) right/14px 100% no-repeat}}
table{{border-collapse:collapse;width:100%;font-size:.92rem;font-variant-numeric:tabular-nums}}
figcaption{{font-size:.88rem;color:var(--caption)}}
th,td{{padding:.45rem .6rem;text-align:left;border-bottom:1px solid var(--rule);vertical-align:top}}
th{{background:var(--head);font-weight:600;min-width:3rem;vertical-align:bottom}}
th:first-child{{min-width:7rem}}
.number{{text-align:right}}
td.number{{white-space:nowrap}}
tr.highlight td,td.highlight{{background:var(--stress);font-weight:600}}
tfoot td{{color:var(--caption);font-size:.85rem}}
figure{{margin:1rem 0}}
.buttons{{display:flex;gap:.5rem;justify-content:flex-end;margin:0 0 .4rem}}
button{{font:inherit;font-size:.85rem;color:inherit;background:var(--head);border:1px solid var(--line);
border-radius:6px;padding:.25rem .7rem;cursor:pointer}}
@media(max-width:600px){{main{{padding:18px 14px 48px}}h1{{font-size:1.45rem}}
th,td{{padding:.4rem .5rem;overflow-wrap:anywhere}}
.wide thead{{display:none}}
.wide table,.wide tbody,.wide tfoot,.wide tr{{display:block}}
.wide tr{{padding:.4rem 0;border-bottom:1px solid var(--line)}}
.wide td{{display:flex;gap:.6rem;padding:.12rem .6rem;border:0;white-space:normal;text-align:left}}
.wide td::before{{content:attr(data-column);flex:0 0 8rem;color:var(--caption);font-weight:400}}
.wide td:first-child{{font-weight:600}}
.wide td:first-child::before,.wide td:empty{{display:none}}}}
@media screen and (prefers-color-scheme:dark){{
:root{{--page:#15191e;--page0:#15191e00;--text:#e4e7eb;--soft:#c3cbd4;--caption:#9aa5b1;--line:#323f4b;
--rule:#2a343e;--head:#ffffff0d;--shade:#00000080;--shade0:#00000000;--stress:#ffbf002e}}
.drawing{{filter:invert(.92) hue-rotate(180deg)}}
.picture text{{fill:var(--text)!important}}}}
"""
"""In the dark, drawings are inverted, which keeps their hues and their contrasts; pictures are left alone."""

TABLE_SCRIPT = """
for (const button of document.querySelectorAll('button[data-table]')) button.onclick = async () => {
  const csv = button.dataset.file, mark = csv ? ',' : '\\t';
  const quote = (text) => csv && /[",\\n]/.test(text) ? '"' + text.replaceAll('"', '""') + '"' : text;
  const cells = (row) => [...row.cells].map((cell) => quote(cell.textContent)).join(mark);
  const text = [...document.getElementById(button.dataset.table).rows].map(cells).join('\\n') + '\\n';
  if (csv) {
    const link = document.createElement('a');
    link.href = URL.createObjectURL(new Blob(['\\ufeff' + text], {type: 'text/csv'}));
    link.download = csv;
    link.click();
    return;
  }
  try { await navigator.clipboard.writeText(text); } catch {
    const area = document.body.appendChild(document.createElement('textarea'));
    area.value = text;
    area.select();
    document.execCommand('copy');
    area.remove();
  }
  const name = button.textContent;
  button.textContent = 'Copied';
  setTimeout(() => { button.textContent = name; }, 1500);
};
"""
"""Copies a table with tabs, as spreadsheets take it, or saves it as CSV with the mark by which Excel knows
UTF-8. A page opened from a file may have no clipboard of the modern kind; then the older way is taken."""
