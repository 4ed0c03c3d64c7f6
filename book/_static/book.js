// in a folder opened as a file a page may not read other pages, which the search would do for a
// line of text under every title it has found; titles alone need the index only
if (location.protocol === "file:") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;

// on a first visit the theme asks for a mode, finds none, and complains
document.documentElement.dataset.mode ||= "auto";

// paper is light, whatever the screen is
{
  const page = document.documentElement;
  let theme;
  addEventListener("beforeprint", () => {
    theme = page.dataset.theme;
    page.dataset.theme = "light";
  });
  addEventListener("afterprint", () => {
    page.dataset.theme = theme;
  });
}
