error("it broke")
