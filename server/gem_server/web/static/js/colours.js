// The theme, and its colours for what is drawn outside of CSS.

const KEY = "gemps-colours";
const CHOICES = ["auto", "light", "dark"];
const listeners = [];
const known = new Map();
const probe = document.createElement("span");

/** Call when the colours have changed. */
export function onTheme(listener) {
  listeners.push(listener);
}

/** The colour of a CSS variable as it is now: colour("blue"). */
export function colour(name) {
  if (!known.has(name)) {
    if (!probe.isConnected) {
      probe.hidden = true;
      document.body.append(probe);
    }
    probe.style.color = `var(--${name})`;
    known.set(name, getComputedStyle(probe).color);
  }
  return known.get(name);
}

/** The same for areas, which let the ground through. */
export function faint(name, strength = 0.1) {
  return colour(name).replace("rgb(", "rgba(").replace(")", `, ${strength})`);
}

/** Let a button go through auto, light and dark; the choice is kept in this browser. */
export function offerThemes(button) {
  let choice = CHOICES.includes(stored()) ? stored() : CHOICES[0];
  const show = () => {
    if (choice === CHOICES[0]) delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = choice;
    button.querySelector("#theme-choice").textContent = choice;
    changed();
  };
  button.addEventListener("click", () => {
    choice = CHOICES[(CHOICES.indexOf(choice) + 1) % CHOICES.length];
    try {
      localStorage.setItem(KEY, choice);
    } catch {
      // storage is switched off: it holds until the page is left
    }
    show();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
  show();
}

function stored() {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null;
  }
}

function changed() {
  known.clear();
  for (const listener of listeners) listener();
}

// From dark to bright, with even steps of lightness: it reads alike in grey and to the colour-blind.
const RAMP = [
  [20, 24, 58],
  [38, 62, 124],
  [30, 108, 148],
  [40, 152, 146],
  [112, 190, 118],
  [196, 216, 102],
  [253, 240, 170],
];

/** The colour of a part (0 to 1) of the scale of heat maps. */
export function heat(part) {
  const place = Math.min(Math.max(part, 0), 1) * (RAMP.length - 1);
  const below = Math.min(Math.floor(place), RAMP.length - 2);
  const mixed = RAMP[below].map((value, index) => Math.round(value + (place - below) * (RAMP[below + 1][index] - value)));
  return `rgb(${mixed.join(",")})`;
}
