// Chinese in MkDocs' search: the terms are pairs of neighboring characters, in pages and in queries.
// It replaces MkDocs' own file, which needs a dictionary that browsers do not have.
{
  const RUN = /[\u4e00-\u9fff]+/g;
  const pairs = (run) => (run.length < 2 ? [run] : Array.from({ length: run.length - 1 }, (_, at) => run.slice(at, at + 2)));
  const words = lunr.tokenizer;
  const found = lunr.Index.prototype.search;

  lunr.zh = { wordCharacters: "\u4e00-\u9fff" };
  lunr.tokenizer = Object.assign(
    (text, metadata) => words(typeof text === "string" ? text.replace(RUN, (run) => ` ${pairs(run).join(" ")} `) : text, metadata),
    words);
  lunr.Index.prototype.search = function (query) {
    return found.call(this, query.replace(RUN, (run) => ` ${pairs(run).map((pair) => (pair.length < 2 ? `${pair}*` : `+${pair}`)).join(" ")} `));
  };
}
