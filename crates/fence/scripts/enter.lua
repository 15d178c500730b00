-- Only raises the mark: for use before the first read of a read-modify-write.

return answer
