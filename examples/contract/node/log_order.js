for (let number = 1; number <= 200; number++) console.log("line " + number);
