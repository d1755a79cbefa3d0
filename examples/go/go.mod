module perfweave-order

go 1.19
