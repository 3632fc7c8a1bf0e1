// Shows the curves of the report: its lines are columns, with null where a line lacks a name.
(() => {
  const data = JSON.parse(document.getElementById("run-data").textContent);
  const steps = data.columns.step || [];
  const points = (name) => {
    const values = data.columns[name];
    const known = steps.map((_, index) => index).filter((index) => typeof values[index] === "number");
    return { steps: known.map((index) => steps[index]), values: known.map((index) => values[index]) };
  };
  const charts = data.charts.map((chart) => ({
    ...chart,
    series: chart.series.map((series) => ({ ...series, ...points(series.name) })),
  }));
  new swiftCharts.Charts(document.getElementById("charts")).show(charts, data.checkpoints);
})();
