// in a folder opened as a file a page may not read other pages, which the search would do for a
// line of text under every title it has found; titles alone need the index only
if (location.protocol === "file:") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;

// on a first visit the theme asks for a mode, finds none, and complains
document.documentElement.dataset.mode ||= "auto";

// a line of text that the search shows has each formula once, not in both of its forms
addEventListener("DOMContentLoaded", () => {
  if (typeof Search === "undefined") return;
  const read = Search.htmlToText;
  Search.htmlToText = (html, anchor) => read(html.replace(/<noscript>[^]*?<\/noscript>/g, ""), anchor);
});

// paper is light, whatever the screen is, and nobody can unfold a hint there
{
  const page = document.documentElement;
  let theme, folded;
  addEventListener("beforeprint", () => {
    theme = page.dataset.theme;
    page.dataset.theme = "light";
    folded = [...document.querySelectorAll(".qr-hints details:not([open])")];
    for (const hint of folded) hint.open = true;
  });
  addEventListener("afterprint", () => {
    page.dataset.theme = theme;
    for (const hint of folded) hint.open = false;
  });
}
