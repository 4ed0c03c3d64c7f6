// one pair of listeners serves every stepper of the page, now and later, copies included
document.documentElement.classList.add("qr-js");
if (!window.qrStepper) {
  window.qrStepper = true;
  const show = (box, step) => {
    const frames = box.querySelectorAll(".qr-frame");
    const range = box.querySelector(".qr-range");
    const frame = frames[step];
    frames.forEach((each) => { each.hidden = each !== frame; });
    range.value = step;
    range.setAttribute("aria-valuetext", frame.dataset.value);
    box.querySelector(".qr-readout").textContent = frame.dataset.readout;
  };
  document.addEventListener("input", (event) => {
    if (event.target.matches(".qr-range")) {
      show(event.target.closest(".qr-stepper"), Number(event.target.value));
    }
  });
  document.addEventListener("click", (event) => {
    const button = event.target.closest(".qr-stepper button");
    if (!button) return;
    const range = button.closest(".qr-stepper").querySelector(".qr-range");
    const count = Number(range.max) + 1;
    show(button.closest(".qr-stepper"), (Number(range.value) + Number(button.value) + count) % count);
  });
}
