// one listener serves every explorer of the page, now and later, copies included
document.documentElement.classList.add("qr-js");
if (!window.qrExplorer) {
  window.qrExplorer = true;
  document.addEventListener("input", (event) => {
    if (!event.target.matches(".qr-dial")) return;
    const box = event.target.closest(".qr-explorer");
    const data = JSON.parse(box.querySelector("script[type='application/json']").textContent);
    let row = 0;
    for (const dial of box.querySelectorAll(".qr-dial")) {
      const choices = JSON.parse(dial.dataset.choices);
      const choice = choices[Number(dial.value)];
      dial.setAttribute("aria-valuetext", choice);
      dial.nextElementSibling.textContent = choice;
      row = row * choices.length + Number(dial.value);
    }
    const svg = box.querySelector("svg");
    const elements = [svg, ...svg.querySelectorAll("*")];
    data.slots.forEach(([element, attribute], k) => {
      const value = data.words[data.rows[row][k]];
      if (attribute) elements[element].setAttribute(attribute, value);
      else elements[element].textContent = value;
    });
    svg.setAttribute("aria-label", data.readouts[row]);
    box.querySelector(".qr-readout").textContent = data.readouts[row];
  });
}
