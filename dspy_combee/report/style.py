"""How a report looks. Colours follow the page around it (notebook) or the reader's own setting (page)."""

from __future__ import annotations

RESULT = """
.combee{font:14px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;max-width:70em;overflow-wrap:anywhere;
 --faint:rgba(127,127,127,.16);--line:rgba(127,127,127,.36);--accent:#3b82f6;--good:#1f9d55;--bad:#d9534f;--warm:#d97706}
.combee h1{font-size:1.5em;margin:0 0 .2em}.combee h2{font-size:1.15em;margin:2em 0 .5em;font-weight:600}
.combee h3{font-size:1em;margin:1.2em 0 .3em;font-weight:600}.combee p{margin:.3em 0}
.combee .soft{opacity:.72}.combee .tiles{display:flex;flex-wrap:wrap;gap:.6em;margin:.8em 0}
.combee .tile{border:1px solid var(--line);border-radius:8px;padding:.5em .9em;min-width:7em;max-width:22em}
.combee .tile .name{font-size:.82em;opacity:.72}.combee .tile .value{font-size:1.25em;font-weight:600}
.combee .tile .note{font-size:.82em;opacity:.72}
.combee .wide{overflow-x:auto;margin:.4em 0}
.combee table{border-collapse:collapse;font-size:.93em;margin:0;font-variant-numeric:tabular-nums}
.combee th,.combee td{padding:.28em .8em .28em 0;text-align:left;vertical-align:top;border:0;background:none;
 border-bottom:1px solid var(--faint)}
.combee th{font-weight:600;border-bottom-color:var(--line);white-space:nowrap}
.combee .number{text-align:right;white-space:nowrap}
.combee .whole{white-space:nowrap}.combee p.lone{padding-left:1.1em;margin:.15em 0}
.combee .text{white-space:pre-wrap;unicode-bidi:isolate}
.combee .badge{font-size:.82em;border:1px solid var(--line);border-radius:99px;padding:0 .6em;white-space:nowrap}
.combee .good{border-color:var(--good)}.combee .bad{border-color:var(--bad)}.combee .warm{border-color:var(--warm)}
.combee .alert{border-left:4px solid var(--bad);background:var(--faint);padding:.4em .8em;margin:.6em 0}
.combee .hint{border-left:4px solid var(--warm);background:var(--faint);padding:.4em .8em;margin:.6em 0}
.combee details{margin:.15em 0}.combee summary{cursor:pointer}
.combee details>.inside{margin:.3em 0 .6em 1.1em;padding-left:.8em;border-left:2px solid var(--line)}
.combee ul{margin:.2em 0;padding-left:1.2em}.combee li{margin:.25em 0}
.combee pre{font:12.5px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;white-space:pre-wrap;margin:.4em 0;
 border:1px solid var(--line);border-radius:8px;padding:.6em .8em;background:none;color:inherit}
.combee pre span{display:block}
.combee .added{background:rgba(46,160,67,.2)}
.combee .removed{background:rgba(217,83,79,.2)}
.combee .where{opacity:.65}
.combee .chart{width:100%;max-width:44em;height:auto;display:block;margin:.4em 0}
.combee .chart text{font:12px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;fill:currentColor}
.combee .chart .axis{stroke:currentColor;opacity:.6}.combee .chart .grid{stroke:var(--line);stroke-width:.6}
.combee .chart .line{fill:none;stroke:var(--accent);stroke-width:2.2;stroke-linejoin:round}
.combee .chart .pick{stroke:var(--warm);stroke-width:1.6;stroke-dasharray:5 4}
.combee .chart .mark{fill:var(--accent);stroke:Canvas;stroke-width:1.2}
"""

PAGE = """
:root{color-scheme:light dark}
body{margin:0;padding:2em clamp(1em,4vw,3em);background:#fff;color:#1c1e21}
@media (prefers-color-scheme:dark){body{background:#15171a;color:#e6e6e6}}
@media print{body{padding:0}}
"""
