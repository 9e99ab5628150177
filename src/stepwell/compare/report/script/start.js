// Read the data that is part of the page, draw, and if the page is watched keep asking.

const page = JSON.parse(find("#data").textContent);
page.choice = { metric: null, axis: "images", logs: new Set(["y"]), view: "close", bands: "ratio", hidden: new Set() };

controls();
drawAll();
themeButton();
copyButtons();
if (page.live) live();
