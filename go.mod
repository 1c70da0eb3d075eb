module ibverbx

go 1.26
