raise ValueError("it broke")
