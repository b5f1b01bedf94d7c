/** The heads of one encoding as thumbnails. */
import { project } from "./cells.js";
import { h } from "./dom.js";
import { whole } from "./figure.js";
import { paint } from "./paint.js";
import { pictureOf } from "./picture.js";

const SIDE = 44; // CSS pixels

export class Strip {
  constructor(name, act) {
    this.name = name;
    this.act = act;
    this.element = h("div", { class: "strip", role: "group", "aria-label": `Heads of ${name}` });
    this.buttons = new Map();
    this.drawing = 0;
  }

  /** As many thumbnails as the run has heads, in the order of the sort, and the mean of all. */
  build(run, order) {
    const heads = run.heads > 1 ? [...order, "mean"] : order;
    if (heads.join() === [...this.buttons.keys()].join()) return;
    this.buttons = new Map(
      heads.map((head) => {
        const canvas = h("canvas", { "aria-hidden": "true" });
        const button = h(
          "button",
          {
            type: "button",
            class: "thumb",
            "aria-label": head === "mean" ? "Mean of all heads" : `Head ${head}`,
            on: { click: () => this.act.setHead(head) },
          },
          canvas,
          h("span", { "aria-hidden": "true", textContent: head === "mean" ? "mean" : String(head) }),
        );
        return [head, { button, canvas }];
      }),
    );
    this.element.replaceChildren(...[...this.buttons.values()].map(({ button }) => button));
  }

  mark(head) {
    for (const [own, { button }] of this.buttons) button.setAttribute("aria-pressed", String(own === head));
  }

  /** Draws them one at a time, so that the page answers in between. */
  async draw(run, settings) {
    const turn = ++this.drawing;
    for (const [head, { canvas }] of this.buttons) {
      await pause();
      if (turn !== this.drawing || !run.result(this.name)) return;
      this.thumbnail(run, settings, head, canvas);
    }
  }

  thumbnail(run, settings, head, canvas) {
    const grain = devicePixelRatio || 1;
    const side = Math.round(SIDE * grain);
    if (canvas.width !== side) canvas.width = canvas.height = side;
    const { matrix, how, scale } = pictureOf(run, settings, head).panel(this.name);
    const cells = project(matrix, run.mask, whole(run), { high: side, wide: side }, how);
    const context = canvas.getContext("2d");
    const image = context.createImageData(side, side);
    paint(cells, scale, image, grain);
    context.putImageData(image, 0, 0);
  }
}

function pause() {
  return new Promise((resolve) => setTimeout(resolve));
}
