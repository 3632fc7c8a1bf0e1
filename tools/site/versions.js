// A list of the site's versions at the top of each page; a version is a folder next to versions.json.
const home = new URL(".", document.currentScript.src);
const here = home.pathname.split("/").at(-2);
fetch(new URL("../versions.json", home)).then((response) => response.json()).then((versions) => {
  const list = document.createElement("select");
  list.ariaLabel = "Version";
  list.append(...versions.map((version) => new Option(version, version, false, version === here)));
  list.addEventListener("change", async () => {
    const page = location.pathname.slice(home.pathname.length);
    const same = new URL(`../${list.value}/${page}`, home);
    const found = await fetch(same, { method: "HEAD" }).then((response) => response.ok, () => false);
    location.href = found ? same : new URL(`../${list.value}/index.html`, home);
  });
  document.querySelector(".wy-side-nav-search").append(list);
}, () => {}); // a version alone, or files without a server
