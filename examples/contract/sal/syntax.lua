if true then (
