module quire.dev/go

go 1.24
