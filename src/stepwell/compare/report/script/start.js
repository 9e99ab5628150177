// Read the embedded data, draw, and poll for changes if the page is watched.

const page = JSON.parse(select("#data").textContent);
page.choice = { metric: null, axis: "images", logs: new Set(["y"]), view: "close", bands: "ratio", hidden: new Set() };

controls();
drawAll();
themeButton();
copyButtons();
if (page.live) live();
