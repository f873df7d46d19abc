// Follows the system's light or dark mode. Furo has media queries for that, which Debian's build of its style sheet lacks.
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const follow = () => {
  if (document.body.dataset.theme === "auto") document.body.dataset.theme = dark.matches ? "dark" : "light";
};
document.addEventListener("DOMContentLoaded", follow);
