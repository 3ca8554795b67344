// Charts by plotly.js, loaded with the first chart. They follow the colours of the page.

let script = null;
const drawn = new Map(); // element → function that draws its chart again

function plotly() {
  script ??= new Promise((resolve, reject) => {
    const element = document.createElement("script");
    element.src = "static/plotly.min.js";
    element.onload = () => resolve(window.Plotly);
    element.onerror = () => {
      script = null;
      reject(new Error("Charts need plotly.js: in a clone of nbmf, run pip install '.[server]'. The tables show the same numbers."));
    };
    document.head.append(element);
  });
  return script;
}

export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

function theme() {
  const axis = {
    gridcolor: colour("line"),
    zeroline: false,
    linecolor: colour("line"),
    tickcolor: colour("line"),
    tickfont: { color: colour("soft"), size: 12 },
    title: { font: { color: colour("soft"), size: 13 }, standoff: 8 },
    automargin: true,
  };
  return {
    axis,
    layout: {
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      showlegend: false,
      hovermode: "closest",
      font: { family: "inherit", color: colour("ink") },
      margin: { l: 8, r: 12, t: 8, b: 8 },
      dragmode: false,
      hoverlabel: {
        bgcolor: colour("card"),
        bordercolor: colour("soft"),
        font: { color: colour("ink"), size: 13 },
        align: "left",
      },
    },
  };
}

/**
 * Draw a chart into an element. `make(theme)` returns {data, layout}, and is called again when the colour scheme changes.
 * Resolves to the element, or to null if the chart could not be drawn.
 */
export async function draw(place, make) {
  try {
    const Plotly = await plotly();
    if (!place.isConnected) return null;
    const again = () => {
      const { data, layout } = make(theme());
      const settings = { displayModeBar: false, responsive: true, scrollZoom: false, doubleClick: "reset" };
      return Plotly.react(place, data, layout, settings);
    };
    place.replaceChildren();
    await again();
    drawn.set(place, again);
    return place;
  } catch (error) {
    place.textContent = error.message;
    return null;
  }
}

/** Release charts that have left the page. */
export function sweep() {
  for (const place of drawn.keys()) {
    if (place.isConnected) continue;
    window.Plotly?.purge(place);
    drawn.delete(place);
  }
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawn.forEach((again) => again()));

/** Ticks of a logarithmic axis at 1, 2, 5, 10, … within a range, as plain numbers. */
export function logTicks(low, high) {
  const values = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1)
    for (const step of [1, 2, 5]) values.push(step * 10 ** power);
  const inside = values.filter((value) => value >= low * 0.999 && value <= high * 1.001);
  const few = inside.length > 9 ? inside.filter((value) => Number.isInteger(Math.log10(value))) : inside;
  return {
    tickvals: few,
    ticktext: few.map((value) => (value >= 1 ? value.toLocaleString("en") : String(Number(value.toPrecision(3))))),
  };
}
