// Computes the mean and the standard deviation of some numbers. Needs [executors.node] (config.toml).
const fs = require("fs");

const figures = [12, 15, 11, 19, 30, 8, 14];
const mean = figures.reduce((sum, each) => sum + each, 0) / figures.length;
const spread = Math.sqrt(figures.reduce((sum, each) => sum + (each - mean) ** 2, 0) / figures.length);
console.log(`mean ${mean.toFixed(2)}, spread ${spread.toFixed(2)}`);
fs.writeFileSync(process.env.MYCOJOBS_RESULT, JSON.stringify({ mean, spread, figures }));
